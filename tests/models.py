"""Small models of the families that users bring, each with a batch and a loss."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.llama3_8b import Config as LlamaConfig
from examples.llama3_8b import Llama
from examples.train_digits import ConvNet, VisionTransformer

# The tests of models run here; `cpu` checks the tests themselves.
DEVICE = os.environ.get("TORCHTPU_TEST_DEVICE", "tpu")

VOCABULARY = 61
LLAMA = LlamaConfig(
    vocabulary=VOCABULARY,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    hidden=64,
    dtype=torch.float32,
)


class GptBlock(nn.Module):
    """Pre-norm decoder block with full heads and tanh GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        parts = self.qkv(self.norm1(x)).split(width, dim=-1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)  # each [B, H, T, D]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return out


class Gpt(nn.Module):
    """GPT-2 style decoder: learned positions, output matrix tied to the embedding."""

    def __init__(self, width: int = 32, heads: int = 4, depth: int = 2, length: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([GptBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """The eighteen layers of ResNet-18 with an eighth of its width."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage in range(4):
            outputs = width << stage
            blocks += [ResidualBlock(inputs, outputs, 1 if stage == 0 else 2)]
            blocks += [ResidualBlock(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, stride=2, padding=1)
        x = F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1)  # [B, C, H, W] -> [B, C]
        logits: Tensor = self.head(x)
        return logits


class UNet(nn.Module):
    """Two levels down and up with skips, group norm, SiLU and transposed convolutions."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner = self.stage(3, width)
        self.middle = self.stage(width, 2 * width)
        self.bottom = self.stage(2 * width, 4 * width)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge1 = self.stage(4 * width, 2 * width)
        self.merge2 = self.stage(3 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    @staticmethod
    def stage(inputs: int, outputs: int) -> nn.Module:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        return nn.Sequential(conv, nn.GroupNorm(4, outputs), nn.SiLU())

    def forward(self, images: Tensor) -> Tensor:
        inner = self.inner(images)  # [B, C, H, W]
        middle = self.middle(F.avg_pool2d(inner, 2))  # [B, 2C, H / 2, W / 2]
        bottom = self.bottom(F.max_pool2d(middle, 2))  # [B, 4C, H / 4, W / 4]
        x = self.merge1(torch.cat([self.up1(bottom), middle], dim=1))
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = self.merge2(torch.cat([x, inner], dim=1))
        out: Tensor = self.out(x)
        return out


class Lstm(nn.Module):
    """Two LSTM layers over embedded tokens."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.words(tokens))
        logits: Tensor = self.head(states)
        return logits


Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


def tokens() -> Batch:
    """Tokens [3, 12] and, as targets, the tokens that follow."""
    text = torch.randint(VOCABULARY, (3, 13))
    return text[:, :-1], text[:, 1:]


def images(channels: int, side: int, count: int = 4) -> Batch:
    """Images and class labels."""
    return torch.rand(count, channels, side, side), torch.randint(10, (count,))


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, what it is fed and what it is to make small."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Loss
    training_dtype: torch.dtype = torch.float32


CASES = {
    "digits_conv": Case(build=ConvNet, batch=lambda: images(1, 8), loss=F.cross_entropy),
    "digits_vit": Case(build=VisionTransformer, batch=lambda: images(1, 8), loss=F.cross_entropy),
    "gpt2": Case(build=Gpt, batch=tokens, loss=next_token_loss),
    "llama": Case(build=lambda: Llama(LLAMA), batch=tokens, loss=next_token_loss),
    # Among this many ReLUs one lies so near to 0 that float32 rounding decides which way its
    # gradient goes; and smaller images leave the last batch norms too few values.
    "resnet18": Case(
        build=ResNet,
        batch=lambda: images(3, 64, count=8),
        loss=F.cross_entropy,
        training_dtype=torch.float64,
    ),
    "unet": Case(
        build=UNet,
        batch=lambda: (torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16)),
        loss=F.mse_loss,
    ),
    "lstm": Case(build=Lstm, batch=tokens, loss=next_token_loss),
}
