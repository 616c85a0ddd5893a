"""Running results along a dim: cumulative sums, products, extrema and log-sum-exps."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering


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
    if not jnp.issubdtype(self.dtype, jnp.complexfloating):
        return lax.cumlogsumexp(self, axis)
    largest = jnp.max(self.real, axis=axis, keepdims=True)
    return jnp.log(lax.cumsum(jnp.exp(self - largest), axis)) + largest


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
