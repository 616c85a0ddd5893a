"""The decoder: blocks, the embedding before them and the loss behind them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from examples import llm_remat
from examples.llm_attention import Attention, Cache
from examples.llm_config import Config
from examples.llm_latent import LatentAttention
from examples.llm_layers import Embedding, Linear, Mlp, Rope, norm, rope_table
from examples.llm_moe import Moe


class Block(nn.Module):
    """Pre-norm decoder block; its MLP may be a mixture of experts."""

    attention: Attention | LatentAttention

    def __init__(self, config: Config, layer: int, ranks: int = 1) -> None:
        super().__init__()
        self.kept: frozenset[str] | None = None  # what llm_remat keeps for backward
        self.attention_norm = norm(config, config.width)
        self.attention = LatentAttention(config) if config.kv_rank else Attention(config, layer)
        self.mlp_norm = None if config.parallel_block else norm(config, config.width)
        self.mlp = Moe(config, ranks) if config.is_moe(layer) else Mlp(config, config.hidden)
        self.attention_post = norm(config, config.width) if config.post_norm else None
        self.mlp_post = norm(config, config.width) if config.post_norm else None

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        out: Tensor = llm_remat.run(self.kept, self._body, x, rope)
        return out

    def _body(self, x: Tensor, rope: Rope) -> Tensor:
        h = self.attention_norm(x)
        return self._rest(x, h, self.attention(h, rope))

    def _rest(self, x: Tensor, h: Tensor, y: Tensor) -> Tensor:
        """What follows attention: x is the block's input, h its norm, y attention's result."""
        x = x + (y if self.attention_post is None else self.attention_post(y))
        y = self.mlp(h if self.mlp_norm is None else self.mlp_norm(x))
        return x + (y if self.mlp_post is None else self.mlp_post(y))

    def serve(self, x: Tensor, rope: Rope, cache: Cache, position: Tensor | None) -> Tensor:
        """Prefill of x [B, T, C], or decoding of x [B, 1, C] at `position` [1]."""
        h = self.attention_norm(x)
        if position is None:
            return self._rest(x, h, self.attention.prefill(h, rope, cache))
        return self._rest(x, h, self.attention.decode(h, rope, cache, position))


class Head(nn.Module):
    """Last norm, output matrix and cross entropy."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = norm(config, config.width)
        self.out = Linear(config, config.width, config.vocabulary)
        self.chunks = 1  # parts of the sequence whose logits exist at a time

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Mean cross entropy of `targets` [B, T] given x [B, T, C]; without them logits."""
        if targets is None:
            logits: Tensor = self.out(self.norm(x))
            return logits
        if self.chunks == 1:
            return self._loss(x, targets)
        parts = zip(x.chunk(self.chunks, 1), targets.chunk(self.chunks, 1), strict=True)
        losses = [checkpoint(self._loss, *part, use_reentrant=False) for part in parts]
        return torch.stack(losses).mean()

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.out(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Decoder(nn.Module):
    """Decoder of `config.layers` blocks; `ranks` ranks share the experts of each layer."""

    def __init__(self, config: Config, ranks: int = 1) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config, config.vocabulary)
        self.places = None
        if config.learned_positions:
            self.places = Embedding(config, config.learned_positions)
        self.blocks = nn.ModuleList(Block(config, i, ranks) for i in range(config.layers))
        self.head = Head(config)
        self.tie()

    @property
    def layers(self) -> list[Block]:
        """The blocks, typed."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def tie(self) -> None:
        """Use the embedding as output matrix where the model does."""
        if self.config.tied:
            self.head.out.weight = self.embed.weight

    def embedded(self, tokens: Tensor, position: Tensor | None = None) -> Tensor:
        """[B, T] -> [B, T, C]; the tokens stand at `position` [T], or at 0, 1, ..."""
        x: Tensor = self.embed(tokens)
        if self.places is None:
            return x
        if position is None:
            position = torch.arange(tokens.shape[1], device=tokens.device)
        placed: Tensor = x + self.places(position)
        return placed

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Mean cross entropy of `targets` [B, T], or logits [B, T, V], given `tokens` [B, T]."""
        rope = rope_table(self.config, tokens.shape[1], tokens.device)
        x = self.embedded(tokens)
        for block in self.blocks:
            x = block(x, rope)
        out: Tensor = self.head(x, targets)
        return out

    @torch.no_grad()
    def initialise(self, seed: int = 0, expert_rank: int = 0) -> None:
        """Draw what `to_empty` left: matrices of deviation 0.02, norms of 1, biases of 0.

        All of it on the parameters' device. A rank draws what it holds from a seed of the
        parameter and of its part of it, so replicas start equal.
        """
        self.tie()  # to_empty makes two of a shared parameter
        for number, (name, parameter) in enumerate(self.named_parameters()):
            local, part = _local(parameter)
            if name.endswith("bias") or ".biases." in name:
                local.zero_()
            elif parameter.dim() == 1:
                local.fill_(1.0)
            else:
                part += (expert_rank,) if ".experts." in name else ()
                torch.manual_seed(hash((seed, number, part)) % 2**31)
                local.normal_(std=0.02)


def _local(parameter: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The rows that this rank holds, and which part of the whole they are."""
    if not hasattr(parameter, "to_local"):
        return parameter, ()
    coordinate = parameter.device_mesh.get_coordinate() or ()
    split = zip(coordinate, parameter.placements, strict=True)
    return parameter.to_local(), tuple(c for c, place in split if not place.is_replicate())
