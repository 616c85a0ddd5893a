"""Order along a dim: sort, top-k, k-th value, median, mode, and searches in sorted arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.pointwise import quotient
from torchtpu.lowerings.reductions import argmax
from torchtpu.lowerings.registry import Array, convert, lowering, rounded


def sorted_along(x: Array, axis: int, descending: bool = False) -> tuple[Array, Array]:
    """Stable sort of values and their indices; NaN counts as the largest."""
    keys = x.astype(jnp.uint8) if x.dtype == bool else x
    index = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    if descending:  # reversed before and after, so that equal elements keep their order
        keys, index = jnp.flip(keys, axis), jnp.flip(index, axis)
    keys, index = lax.sort((keys, index), dimension=axis, is_stable=True, num_keys=1)
    if descending:
        keys, index = jnp.flip(keys, axis), jnp.flip(index, axis)
    return convert(keys, x.dtype), index


@lowering("aten::sort", "aten::sort.stable")
def sort(
    self: Array, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Array, Array]:
    """Values and indices in order along dim; always stable."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    return sorted_along(self, dim % self.ndim, descending)


@lowering("aten::topk")
def topk(
    self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    """The k largest or smallest elements along dim, in order, and their indices."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    x = jnp.moveaxis(self, dim, -1)
    keys = x.astype(jnp.uint8) if x.dtype == bool else x
    is_inexact = jnp.issubdtype(keys.dtype, jnp.inexact)
    if not largest:
        keys = -keys if is_inexact else ~keys
    values, index = lax.top_k(keys, k)
    if not largest:
        values = jnp.take_along_axis(x, index, -1)
    return convert(jnp.moveaxis(values, -1, dim), self.dtype), jnp.moveaxis(index, -1, dim)


def _picked(
    values: Array, index: Array, at: Array | int, axis: int, keepdim: bool
) -> tuple[Array, Array]:
    """Elements of sorted values and indices at one position along axis."""
    if isinstance(at, int):
        at = jnp.full((*values.shape[:axis], 1, *values.shape[axis + 1 :]), at, jnp.int32)
    found = [jnp.take_along_axis(v, at, axis) for v in (values, index)]
    value, place = found if keepdim else [f.squeeze(axis) for f in found]
    return value, place


@lowering("aten::kthvalue")
def kthvalue(self: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """The k-th smallest element along dim, counted from 1, and its index."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    axis = dim % self.ndim
    return _picked(*sorted_along(self, axis), k - 1, axis, keepdim)


def _median(x: Array, dim: int, keepdim: bool, *, skip_nan: bool) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    axis = dim % x.ndim
    values, index = sorted_along(x, axis)
    nan = values != values
    count = x.shape[axis] - jnp.sum(nan, axis=axis, keepdims=True, dtype=jnp.int32)
    if skip_nan:
        return _picked(values, index, jnp.maximum(count - 1, 0) // 2, axis, keepdim)
    at = jnp.where(count < x.shape[axis], count, (x.shape[axis] - 1) // 2)  # the first NaN, if any
    return _picked(values, index, at, axis, keepdim)


@lowering("aten::median.dim")
def median_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The lower median along dim and its index; NaN where there is one."""
    return _median(self, dim, keepdim, skip_nan=False)


@lowering("aten::nanmedian.dim")
def nanmedian_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The lower median along dim of what is not NaN, and its index."""
    return _median(self, dim, keepdim, skip_nan=True)


@lowering("aten::median")
def median(self: Array) -> Array:
    """The lower median of all elements; NaN where there is one, or none at all."""
    return _median(self.reshape(-1), 0, False, skip_nan=False)[0] if self.size else _nothing(self)


@lowering("aten::nanmedian")
def nanmedian(self: Array) -> Array:
    """The lower median of all elements that are not NaN."""
    return _median(self.reshape(-1), 0, False, skip_nan=True)[0] if self.size else _nothing(self)


def _nothing(x: Array) -> Array:
    is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    return jnp.full((), jnp.nan if is_inexact else np.iinfo(x.dtype).min, x.dtype)


@lowering("aten::mode")
def mode(self: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """The most frequent element along dim, the smallest of several, and its last index."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    axis = dim % self.ndim
    values, index = sorted_along(self, axis)
    position = lax.broadcasted_iota(jnp.int32, values.shape, axis)
    new = jnp.concatenate(
        [
            jnp.ones_like(lax.slice_in_dim(position, 0, 1, axis=axis), bool),
            lax.slice_in_dim(values, 1, None, axis=axis)
            != lax.slice_in_dim(values, 0, -1, axis=axis),
        ],
        axis,
    )
    run = position - lax.cummax(jnp.where(new, position, 0), axis)
    at = argmax(run, axis, True)
    return _picked(values, index, at.astype(jnp.int32), axis, keepdim)


def _search(sequence: Array, values: Array, right: bool) -> Array:
    """Insertion points of values in sequences sorted along the last dim, row by row."""
    dtype = jnp.promote_types(sequence.dtype, values.dtype)
    sequence, values = sequence.astype(dtype), values.astype(dtype)
    side = "right" if right else "left"
    if sequence.ndim == 1:
        return jnp.searchsorted(sequence, values, side=side)
    rows = int(np.prod(sequence.shape[:-1], dtype=np.int64))
    if rows == 0:
        return jnp.zeros(values.shape, jnp.int32)
    found = jax.vmap(lambda s, v: jnp.searchsorted(s, v, side=side))(
        sequence.reshape(rows, sequence.shape[-1]), values.reshape(rows, -1)
    )
    return found.reshape(values.shape)


@lowering("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(
    sorted_sequence: Array,
    self: Array,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    """The first position whose element is not below (right: above) each value."""
    if sorter is not None:
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, -1)
    return _search(sorted_sequence, jnp.asarray(self), right or side == "right")


@lowering("aten::bucketize.Tensor", "aten::bucketize.Scalar")
def bucketize(
    self: Array, boundaries: Array, out_int32: bool = False, right: bool = False
) -> Array:
    """The number of boundaries below (right: not above) each value."""
    return _search(boundaries, jnp.asarray(self), right)


@lowering("aten::histc", compute="output", constants={"min": (0,), "max": (0,)}, half=True)
def histc(self: Array, bins: int = 100, min: Array = 0, max: Array = 0, half: Any = None) -> Array:
    """Counts in equal bins between min and max; the data's own range where both are the same."""
    flat = self.reshape(-1)
    dtype = flat.dtype
    if flat.size == 0:
        return jnp.zeros(bins, dtype)
    low, high = (rounded(jnp.asarray(v, dtype), half) for v in (min, max))
    own = low == high
    low, high = jnp.where(own, jnp.min(flat), low), jnp.where(own, jnp.max(flat), high)
    low, high = jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)
    inside = (flat >= low) & (flat <= high)
    place = jnp.clip(_bin(flat - low, high - low, bins, half), 0, bins - 1)
    return jnp.zeros(bins, dtype).at[place].add(inside.astype(dtype))


def _bin(offset: Array, width: Array, bins: int, half: Any) -> Array:
    """offset * bins / width in torch's order and, for two-byte floats, its rounding."""
    wide = jnp.promote_types(offset.dtype, jnp.float32)
    offset, width, count = (
        rounded(v.astype(wide), half) for v in (offset, width, jnp.asarray(bins))
    )
    return rounded(quotient(rounded(offset * count, half), width), half).astype(jnp.int32)
