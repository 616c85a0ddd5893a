"""A cache of keys and values in eight bits, with a scale for each head and token beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.llm_attention import Cache, ring_slots

KINDS = ("float32", "bfloat16", "int8", "fp8")
_EIGHT_BITS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # of torch.finfo and iinfo
_MIN_ROWS = 2  # a product of one row would run on the vector units (v5e, v6e), which is slower


@dataclass
class NarrowCache(Cache):
    """`k` and `v` [B, T, KVH, D] in eight bits; the values they stand for are k * k_scale.

    k_scale, v_scale: [B, T, KVH], the largest magnitude of a token's head over the largest
    number of the type. They multiply scores and weights, not the cache, so that it is read in
    eight bits.
    """

    k_scale: Tensor
    v_scale: Tensor

    def fill(self, k: Tensor, v: Tensor) -> None:
        """Write the last tokens of k, v [B, KVH, T, D] where decoding expects them."""
        slots, size = ring_slots(k.shape[2], self.k.shape[1], k.device), self.k.shape[1]
        self._write(slots, k.transpose(1, 2)[:, -size:], v.transpose(1, 2)[:, -size:])

    def append(self, k: Tensor, v: Tensor, position: Tensor) -> None:
        """Write one token k, v [B, KVH, 1, D] at `position` [1]."""
        self._write(position % self.k.shape[1], k.transpose(1, 2), v.transpose(1, 2))

    def _write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """k, v [B, N, KVH, D] into `slots` [N]."""
        for store, scales, new in ((self.k, self.k_scale, k), (self.v, self.v_scale, v)):
            narrow, scale = quantized(new, store.dtype)
            store[:, slots] = narrow
            scales[:, slots] = scale.to(scales.dtype)

    def attend(self, q: Tensor, position: Tensor) -> Tensor:
        """Attention of one token q [B, H, 1, D] at `position` [1] over what is stored."""
        batch, heads, _, width = q.shape
        grouped = q.view(batch, self.k.shape[2], -1, width)  # [B, KVH, G, D]
        rows = max(grouped.shape[2], _MIN_ROWS)
        grouped = grouped.expand(-1, -1, rows, -1)
        scores = torch.einsum("bkgd,btkd->bkgt", grouped, self.k.to(q.dtype)).float()
        scores = scores * (_per_head(self.k_scale) * width**-0.5)
        slots = torch.arange(self.k.shape[1], device=q.device)
        weights = scores.masked_fill(slots > position, float("-inf")).softmax(-1)
        weights = (weights * _per_head(self.v_scale)).to(q.dtype)
        y = torch.einsum("bkgt,btkd->bkgd", weights, self.v.to(q.dtype))
        return y[:, :, : heads // self.k.shape[2]].reshape(batch, heads, 1, self.v.shape[3])


def _per_head(scale: Tensor) -> Tensor:
    """[B, T, KVH] -> [B, KVH, 1, T] in float32."""
    return scale.float().transpose(1, 2)[:, :, None]


def quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [..., D] in `dtype` (int8 or float8_e4m3fn), and its scales [...] in float32."""
    scale = x.abs().amax(-1).float().clamp(min=1e-12) / _LARGEST[dtype]
    scaled = x.float() / scale[..., None]
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), scale


def make_cache(
    shapes: Sequence[tuple[int, ...]], batch: int, kind: str, device: torch.device
) -> Cache:
    """An empty cache of `batch` sequences; shapes: of keys and of values [T, KVH, D] of one.

    kind: one of KINDS. Scales are kept in bfloat16.
    """
    dtype = _EIGHT_BITS.get(kind) or getattr(torch, kind)
    k, v = (torch.zeros(batch, *shape, dtype=dtype, device=device) for shape in shapes)
    if kind not in _EIGHT_BITS:
        return Cache(k, v)
    scales = (torch.ones(k.shape[:-1], dtype=torch.bfloat16, device=device) for _ in shapes)
    return NarrowCache(k, v, *scales)
