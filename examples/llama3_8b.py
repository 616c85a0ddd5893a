"""Train Llama 3 8B, written with plain torch modules, on random tokens; built to be estimated."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of the 8B model (Grattafiori et al. 2024, "The Llama 3 Herd of Models", table 3)."""

    vocabulary: int = 128_256
    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14_336
    rope_base: float = 500_000.0
    norm_eps: float = 1e-5
    dtype: torch.dtype = torch.bfloat16


def rope_table(config: Config, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, D] of the rotary embedding (Su et al. 2021, equation 34)."""
    size = config.width // config.heads
    frequency = config.rope_base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)  # [T, D / 2]
    angle = torch.cat((angle, angle), dim=-1)  # -> [T, D]
    return angle.cos().to(config.dtype), angle.sin().to(config.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + D / 2) of the last dimension of x [B, H, T, D]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def linear(config: Config, inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=config.dtype)


class Attention(nn.Module):
    """Causal attention in which groups of query heads share one key and value head."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.size = config.width // config.heads
        self.q = linear(config, config.width, config.width)
        self.k = linear(config, config.width, config.kv_heads * self.size)
        self.v = linear(config, config.width, config.kv_heads * self.size)
        self.out = linear(config, config.width, config.width)

    def split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.size))  # [B, T, H * D] -> [B, T, H, D]
        return heads.transpose(1, 2)  # -> [B, H, T, D]

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        q, k = rotate(self.split(self.q(x)), *rope), rotate(self.split(self.k(x)), *rope)
        v = self.split(self.v(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))  # [B, H, T, D] -> [B, T, C]
        return out


class Mlp(nn.Module):
    """SwiGLU feed-forward (Shazeer 2020)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = linear(config, config.width, config.hidden)
        self.up = linear(config, config.width, config.hidden)
        self.down = linear(config, config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """Pre-norm decoder block."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps, dtype=config.dtype)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.width, eps=config.norm_eps, dtype=config.dtype)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Llama(nn.Module):
    """Decoder of `config.layers` blocks with an output matrix of its own."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.width, dtype=config.dtype)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps, dtype=config.dtype)
        self.head = linear(config, config.width, config.vocabulary)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, V] of the token that follows each of `tokens` [B, T]."""
        with tokens.device:
            rope = rope_table(self.config, tokens.shape[1])
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, rope)
        logits: Tensor = self.head(self.norm(x))
        return logits


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "adafactor": torch.optim.Adafactor,
}


def train(
    config: Config, device: str, batch: int, seq: int, steps: int, optimizer: str = "adamw"
) -> list[float]:
    """Losses of some training steps; parameters, tokens and tables are born on the device."""
    with torch.device(device):
        model = Llama(config)
        tokens = torch.randint(config.vocabulary, (batch, seq + 1))
    update = OPTIMIZERS[optimizer](model.parameters(), lr=1e-4)
    losses = []
    for _ in range(steps):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        update.zero_grad()
        loss.backward()
        update.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--batch", type=int, default=1, help="sequences per step")
    parser.add_argument("--seq", type=int, default=2048, help="tokens per sequence")
    parser.add_argument("--layers", type=int, default=Config.layers)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    args = parser.parse_args()
    config = replace(Config(), layers=args.layers)
    losses = train(config, args.device, args.batch, args.seq, args.steps, args.optimizer)
    print("loss per step:", *(f"{loss:.3f}" for loss in losses))


if __name__ == "__main__":
    main()
