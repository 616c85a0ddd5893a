"""Running results along a dim: cumulative sums, products, extrema and log-sum-exps."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.registry import Array, lowering

_Exps = tuple[Array, Array]


@lowering("aten::cumsum", compute="output")
def cumsum(self: Array, dim: int, dtype: Any = None) -> Array:
    """Running sum along dim; integers in int64."""
    return lax.cumsum(self, dim % self.ndim) if self.ndim else self


@lowering("aten::cumprod", compute="output")
def cumprod(self: Array, dim: int, dtype: Any = None) -> Array:
    """Running product along dim; integers in int64."""
    return lax.cumprod(self, dim % self.ndim) if self.ndim else self


@lowering("aten::logcumsumexp", "aten::_logcumsumexp", compute="output")
def logcumsumexp(self: Array, dim: int) -> Array:
    """Running log(sum(exp(x))) along dim."""
    if self.ndim == 0 or self.size == 0:
        return self
    axis = dim % self.ndim
    shift, total = _running_sum(_exps(jnp.moveaxis(self, axis, 0)))
    return jnp.moveaxis(shift + jnp.log(total), 0, axis)


def _exps(x: Array) -> _Exps:
    """x as (m, s) with exp(x) = exp(m) s: m large and finite, so that sums round once, at s."""
    limit = float(np.finfo(x.real.dtype).max)
    shift = jnp.clip(x.real, -limit, limit)
    return shift, jnp.exp(x - shift)


def _running_sum(x: _Exps) -> _Exps:
    """Running sums along the first dim: inside blocks side by side, then over the blocks."""
    length = x[0].shape[0]
    block = math.isqrt(length - 1) + 1
    limit = float(np.finfo(x[0].dtype).max)
    blocks = _in_blocks(x[0], block, -limit), _in_blocks(x[1], block, 0)

    def step(before: _Exps, here: _Exps) -> tuple[_Exps, _Exps]:
        after = _add_exps(before, here)
        return after, after

    def empty(like: _Exps) -> _Exps:
        return jnp.full_like(like[0][0], -limit), jnp.zeros_like(like[1][0])

    inside: _Exps = lax.scan(step, empty(blocks), blocks)[1]
    totals = inside[0][-1], inside[1][-1]
    ahead: _Exps = lax.scan(lambda a, b: (_add_exps(a, b), a), empty(totals), totals)[1]
    shift, total = (
        v.swapaxes(0, 1).reshape(-1, *v.shape[2:])[:length] for v in _add_exps(ahead, inside)
    )
    return shift, total


def _in_blocks(x: Array, block: int, fill: float) -> Array:
    """[length, ...] -> [block, blocks, ...]"""
    padding = [(0, -len(x) % block)] + [(0, 0)] * (x.ndim - 1)
    padded = jnp.pad(x, padding, constant_values=fill)
    return padded.reshape(-1, block, *x.shape[1:]).swapaxes(0, 1)


def _add_exps(a: _Exps, b: _Exps) -> _Exps:
    shift = jnp.maximum(a[0], b[0])
    return shift, a[1] * jnp.exp(a[0] - shift) + b[1] * jnp.exp(b[0] - shift)


@lowering("aten::cummax")
def cummax(self: Array, dim: int) -> tuple[Array, Array]:
    """Running maximum along dim and the index of its last occurrence; NaN stays once it came."""
    return _running(self, dim, largest=True)


@lowering("aten::cummin")
def cummin(self: Array, dim: int) -> tuple[Array, Array]:
    """Running minimum along dim and the index of its last occurrence; NaN stays once it came."""
    return _running(self, dim, largest=False)


def _running(x: Array, dim: int, *, largest: bool) -> tuple[Array, Array]:
    if x.ndim == 0 or x.size == 0:
        return x, jnp.zeros(x.shape, jnp.int64)
    axis = dim % x.ndim
    y = x.astype(jnp.uint8) if x.dtype == bool else x
    best = (lax.cummax if largest else lax.cummin)(y, axis)
    hit = (y == best) | ((y != y) & (best != best))
    index = jnp.where(hit, lax.broadcasted_iota(jnp.int32, x.shape, axis), 0)
    return best, lax.cummax(index, axis)
