"""Attention of the decoder: grouped heads or latent, over a sequence or over a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.llm_config import Config
from examples.llm_layers import Linear, Rope, norm, rotate
from examples.llm_remat import product


def attend(q: Tensor, k: Tensor, v: Tensor, *, window: int, kind: str, block: int = 0) -> Tensor:
    """Causal attention of q [B, H, T, D] over k, v [B, KVH, T, D]; window 0 is the whole past.

    A window is computed in whole blocks: see `local_attention`.
    """
    with product("attention"):
        if kind == "math":
            return _math(q, k, v, _causal(q.shape[2], window, q.device))
        if 0 < window < q.shape[2]:
            return local_attention(q, k, v, window, max(window, block))
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def local_attention(q: Tensor, k: Tensor, v: Tensor, window: int, block: int) -> Tensor:
    """Each token attends to the `window` tokens up to itself; work grows with T * block.

    Blocks of `block` >= window queries read their own block of keys and the one before, so the
    sequence is padded to whole blocks.
    """
    length = q.shape[2]
    pad = -length % block
    q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    q, k, v = (x.unflatten(2, (-1, block)) for x in (q, k, v))  # [B, H, n, W, D]
    k, v = (torch.cat((F.pad(x, (0, 0, 0, 0, 1, -1)), x), dim=3) for x in (k, v))  # [.., 2W, D]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [B, n, H, W or 2W, D]
    mask = _local_mask(q.shape[1], window, block, q.device)  # [n, 1, W, 2W]
    mask = mask.expand(q.shape[0], -1, -1, -1, -1).flatten(0, 1)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    y = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=grouped)
    y = y.unflatten(0, (-1, (length + pad) // block))  # [B, n, H, W, D]
    out: Tensor = y.transpose(1, 2).flatten(2, 3)[:, :, :length]
    return out


def _local_mask(blocks: int, window: int, block: int, device: torch.device) -> Tensor:
    """[n, 1, W, 2W]: key j of two blocks is query i's own past; the first block has no other."""
    i = torch.arange(block, 2 * block, device=device)[:, None]
    j = torch.arange(2 * block, device=device)
    inside = (j > i - window) & (j <= i)
    first = torch.arange(blocks, device=device)[:, None, None] == 0
    return (inside & ~(first & (j < block)))[:, None]


def _causal(length: int, window: int, device: torch.device) -> Tensor:
    """[T, T]: which keys a query sees."""
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    seen = distance >= 0
    return seen & (distance < window) if window else seen


def _math(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Scores, softmax in float32, weighted sum; all H x T x T scores exist."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v)) if group > 1 else (k, v)
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    out: Tensor = weights.to(q.dtype) @ v
    return out


def ring_slots(length: int, size: int, device: torch.device) -> Tensor:
    """Where the last tokens of `length` stand in a cache of `size` [min(length, size)]."""
    return torch.arange(max(0, length - size), length, device=device) % size


@dataclass
class Cache:
    """Keys and values of past tokens [B, T, KVH, D]; a window of fewer tokens is a ring."""

    k: Tensor
    v: Tensor

    def fill(self, k: Tensor, v: Tensor) -> None:
        """Write the last tokens of k, v [B, KVH, T, D] where decoding expects them."""
        slots, size = ring_slots(k.shape[2], self.k.shape[1], k.device), self.k.shape[1]
        for store, new in ((self.k, k), (self.v, v)):
            store.index_copy_(1, slots, new.transpose(1, 2)[:, -size:].to(store.dtype))

    def append(self, k: Tensor, v: Tensor, position: Tensor) -> None:
        """Write one token k, v [B, KVH, 1, D] at `position` [1]."""
        slot = position % self.k.shape[1]
        for store, new in ((self.k, k), (self.v, v)):
            store.index_copy_(1, slot, new.transpose(1, 2).to(store.dtype))

    def attend(self, q: Tensor, position: Tensor) -> Tensor:
        """Attention of one token q [B, H, 1, D] at `position` [1] over what is stored."""
        slots = torch.arange(self.k.shape[1], device=q.device)
        seen = (slots <= position)[None, None, None]  # a ring that has gone round is all seen
        k, v = (x.to(q.dtype).transpose(1, 2) for x in (self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=q.shape[1] != k.shape[1])


class Attention(nn.Module):
    """Attention in which groups of query heads share one key and value head."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.size, self.kv_heads, self.kind = config.head_size, config.kv_heads, config.attention
        self.window, self.block = config.window_of(layer), config.attention_block
        self.rotary = not config.learned_positions
        width, bias = config.width, config.attention_bias
        self.q = Linear(config, width, config.heads * self.size, "q", bias=bias)
        self.k = Linear(config, width, config.kv_heads * self.size, "k", bias=bias)
        self.v = Linear(config, width, config.kv_heads * self.size, "v", bias=bias)
        self.out = Linear(config, config.heads * self.size, width, "out", bias=bias)
        self.q_norm = norm(config, self.size) if config.qk_norm else None
        self.k_norm = norm(config, self.size) if config.qk_norm else None

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, D] of x [B, T, C]."""
        q, k, v = (self._split(layer(x)) for layer in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return (rotate(q, rope), rotate(k, rope), v) if self.rotary else (q, k, v)

    def _split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.size))  # [B, T, H * D] -> [B, T, H, D]
        return heads.transpose(1, 2)  # -> [B, H, T, D]

    def merge(self, y: Tensor) -> Tensor:
        """[B, H, T, D] -> [B, T, C]."""
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        q, k, v = self.project(x, rope)
        return self.merge(self._attend(q, k, v))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, window=self.window, kind=self.kind, block=self.block)

    def cache_shapes(self, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the keys and of the values of one sequence [T, KVH, D]."""
        slots = min(length, self.window) if self.window else length
        shape = (slots, self.kv_heads, self.size)
        return shape, shape

    def prefill(self, x: Tensor, rope: Rope, cache: Cache) -> Tensor:
        """`forward` that leaves its keys and values in the cache."""
        q, k, v = self.project(x, rope)
        cache.fill(k, v)
        return self.merge(self._attend(q, k, v))

    def decode(self, x: Tensor, rope: Rope, cache: Cache, position: Tensor) -> Tensor:
        """One token x [B, 1, C] at `position` [1] -> [B, 1, C]."""
        q, k, v = self.project(x, rope)
        cache.append(k, v, position)
        return self.merge(cache.attend(q, position))
