"""Gathers and scatters: reading and writing elements named by index tensors.

Out-of-range indices: `bounds` checks run in debug mode and raise; elsewhere a read gives the
nearest element and a write is dropped, as XLA defines it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.registry import Array, convert, lowering

Indices = tuple[Array | None, ...]


def _at_least_1d(*arrays: Array) -> tuple[Array, ...]:
    return tuple(a.reshape(1) if a.ndim == 0 else a for a in arrays)


def _along(dim: int, rank: int, index: Array) -> tuple[slice | Array, ...]:
    """The subscript that applies `index` to one dim and keeps the others."""
    return (slice(None),) * (dim % max(rank, 1)) + (index,)


def _positions(index: Array, dim: int) -> tuple[Array, ...]:
    """Full coordinates of gather and scatter: the index along `dim`, its own place elsewhere."""
    dim = dim % index.ndim
    places = [lax.broadcasted_iota(index.dtype, index.shape, d) for d in range(index.ndim)]
    return (*places[:dim], index, *places[dim + 1 :])


Bounds = list[tuple[Array, int, int]]


def _subscript_bounds(self: Array, indices: Indices, **_: Any) -> Bounds:
    return [(i, d, self.shape[d]) for d, i in enumerate(indices) if i is not None]


def _dim_bounds(self: Array, dim: int, index: Array, **_: Any) -> Bounds:
    dim = dim % max(self.ndim, 1)
    return [(index, dim, self.shape[dim] if self.ndim else 1)]


def _row_bounds(weight: Array, indices: Array, **_: Any) -> Bounds:
    return [(indices, 0, weight.shape[0])]


def _flat_bounds(self: Array, index: Array, **_: Any) -> Bounds:
    return [(index, 0, self.size)]


def _added(base: Array, where: tuple[slice | Array, ...], values: Array) -> Array:
    """base with values added at `where`; bool adds as "or"."""
    if base.dtype == bool:
        return base | (
            _added(jnp.zeros(base.shape, jnp.int32), where, values.astype(jnp.int32)) > 0
        )
    return base.at[where].add(values, mode="drop")


def _multiplied(base: Array, where: tuple[slice | Array, ...], values: Array) -> Array:
    """base multiplied by values at `where`; bool multiplies as "and"."""
    if base.dtype == bool:
        return ~_added(~base, where, ~values)
    return base.at[where].multiply(values, mode="drop")


def _replaced(base: Array, where: tuple[slice | Array, ...], values: Array) -> Array:
    """base with values at `where`."""
    return base.at[where].set(values, mode="drop")


# --- index and index_put


def _subscript(indices: Indices) -> tuple[slice | Array, ...]:
    return tuple(slice(None) if i is None else i for i in indices)


@lowering("aten::index.Tensor", "aten::_unsafe_index.Tensor", bounds=_subscript_bounds)
def index_tensor(self: Array, indices: Indices) -> Array:
    """self[indices]; None keeps a dim."""
    return self.at[_subscript(indices)].get(mode="clip")


def _put(self: Array, indices: Indices, values: Array, accumulate: bool) -> Array:
    write = _added if accumulate else _replaced
    return write(self, _subscript(indices), convert(values, self.dtype))


@lowering("aten::index_put", "aten::_unsafe_index_put", bounds=_subscript_bounds)
def index_put(self: Array, indices: Indices, values: Array, accumulate: bool = False) -> Array:
    """self with values at indices; with accumulate, added there."""
    return _put(self, indices, values, accumulate)


@lowering("aten::_index_put_impl", bounds=_subscript_bounds)
def index_put_impl(
    self: Array, indices: Indices, values: Array, accumulate: bool = False, unsafe: bool = False
) -> Array:
    """index_put as torch's backward calls it."""
    return _put(self, indices, values, accumulate)


# --- one index tensor along one dim


@lowering("aten::index_select", bounds=_dim_bounds)
def index_select(self: Array, dim: int, index: Array) -> Array:
    """Slices of self along dim."""
    if self.ndim == 0:
        return self
    return jnp.take(self, index.reshape(-1), axis=dim, mode="clip")


@lowering("aten::embedding", bounds=_row_bounds)
def embedding(
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    """Rows of weight: [*] -> [*, D]."""
    return jnp.take(weight, indices, axis=0, mode="clip")


@lowering("aten::embedding_dense_backward", compute="output", keep={"indices"})
def embedding_dense_backward(
    grad_output: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    """Sums the gradients of each row; the padding row gets none."""
    indices = indices.reshape(-1)
    rows = grad_output.reshape(indices.size, -1)
    if padding_idx >= 0:
        rows = jnp.where((indices == padding_idx)[:, None], 0, rows)
    if scale_grad_by_freq:
        counts = jnp.zeros(num_weights, rows.dtype).at[indices].add(1)
        rows = rows / counts[indices][:, None]
    return jnp.zeros((num_weights, rows.shape[1]), rows.dtype).at[indices].add(rows, mode="drop")


@lowering("aten::index_add", compute="output", keep={"index"}, bounds=_dim_bounds)
def index_add(
    self: Array, dim: int, index: Array, source: Array, alpha: Array | float = 1
) -> Array:
    """self with alpha * source added to slices along dim."""
    source = source if isinstance(alpha, int | float) and alpha == 1 else source * alpha
    base, index = _at_least_1d(self, index)
    source = convert(source.reshape(base.shape) if base.ndim > source.ndim else source, base.dtype)
    return _added(base, _along(dim, base.ndim, index), source).reshape(self.shape)


@lowering("aten::index_copy", bounds=_dim_bounds)
def index_copy(self: Array, dim: int, index: Array, source: Array) -> Array:
    """self with slices along dim replaced by source."""
    base, index = _at_least_1d(self, index)
    source = source.reshape(base.shape) if base.ndim > source.ndim else source
    return _replaced(base, _along(dim, base.ndim, index), source).reshape(self.shape)


@lowering(
    "aten::index_fill.int_Scalar",
    "aten::index_fill.int_Tensor",
    compute="output",
    opmath=False,
    keep={"index"},
    bounds=_dim_bounds,
)
def index_fill(self: Array, dim: int, index: Array, value: Array) -> Array:
    """self with slices along dim set to value."""
    base, index = _at_least_1d(self, index)
    value = convert(jnp.asarray(value), self.dtype)
    return _replaced(base, _along(dim, base.ndim, index), value).reshape(self.shape)


@lowering("aten::index_reduce", compute="output", keep={"index"}, bounds=_dim_bounds)
def index_reduce(
    self: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True
) -> Array:
    """self with slices along dim combined with source by prod, mean, amax or amin."""
    base, index = _at_least_1d(self, index)
    source = source.reshape(base.shape) if base.ndim > source.ndim else source
    where = _along(dim, base.ndim, index)
    return _reduced(base, where, source, reduce, include_self).reshape(self.shape)


# --- gather, scatter and their reductions


@lowering("aten::gather", bounds=_dim_bounds)
def gather(self: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    """self[.., index, ..] along dim; other coordinates are the index tensor's own."""
    if self.ndim == 0 or index.ndim == 0:
        base, where = _at_least_1d(self, index)
        return base.at[where].get(mode="clip").reshape(index.shape)
    if index.size == 0:
        return jnp.zeros(index.shape, self.dtype)
    dim = dim % self.ndim
    cut = tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(index.shape))
    return jnp.take_along_axis(self[cut], index, axis=dim, mode="clip")


def _scatter(self: Array, dim: int, index: Array, src: Array, write: Callable[..., Array]) -> Array:
    """Write src (an array that covers the index, or one value) at the index's coordinates."""
    if index.size == 0:
        return self
    base, index = _at_least_1d(self, index)
    src = convert(jnp.asarray(src), self.dtype)
    if src.ndim or src.size > 1:
        src = src[tuple(slice(n) for n in index.shape)]
    return write(base, _positions(index, dim), src).reshape(self.shape)


@lowering("aten::scatter.src", bounds=_dim_bounds)
def scatter_src(self: Array, dim: int, index: Array, src: Array) -> Array:
    """self with src at the index's coordinates."""
    (src,) = _at_least_1d(src)
    return _scatter(self, dim, index, src, _replaced)


@lowering("aten::scatter.value", bounds=_dim_bounds)
def scatter_value(self: Array, dim: int, index: Array, value: Array) -> Array:
    """self with one value at the index's coordinates."""
    return _scatter(self, dim, index, value, _replaced)


@lowering("aten::scatter_add", compute="output", keep={"index"}, bounds=_dim_bounds)
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Array:
    """self with src added at the index's coordinates."""
    (src,) = _at_least_1d(src)
    return _scatter(self, dim, index, src, _added)


@lowering("aten::scatter.reduce", compute="output", keep={"index"}, bounds=_dim_bounds)
def scatter_src_reduce(self: Array, dim: int, index: Array, src: Array, reduce: str) -> Array:
    """self with src added or multiplied at the index's coordinates."""
    (src,) = _at_least_1d(src)
    return _scatter(self, dim, index, src, _multiplied if reduce == "multiply" else _added)


@lowering("aten::scatter.value_reduce", compute="output", keep={"index"}, bounds=_dim_bounds)
def scatter_value_reduce(self: Array, dim: int, index: Array, value: Array, reduce: str) -> Array:
    """self with one value added or multiplied at the index's coordinates."""
    return _scatter(self, dim, index, value, _multiplied if reduce == "multiply" else _added)


@lowering("aten::scatter_reduce.two", compute="output", keep={"index"}, bounds=_dim_bounds)
def scatter_reduce(
    self: Array, dim: int, index: Array, src: Array, reduce: str, include_self: bool = True
) -> Array:
    """self combined with src at the index's coordinates by sum, prod, mean, amax or amin."""
    if index.size == 0:
        return self
    base, index, src = _at_least_1d(self, index, src)
    src = src[tuple(slice(n) for n in index.shape)]
    return _reduced(base, _positions(index, dim), src, reduce, include_self).reshape(self.shape)


def _reduced(
    base: Array, where: tuple[slice | Array, ...], source: Array, reduce: str, include_self: bool
) -> Array:
    source = convert(source, base.dtype)
    if not include_self:
        base = _replaced(base, where, _identity(reduce, base.dtype))
    if reduce == "prod":
        return _multiplied(base, where, source)
    if reduce in ("amax", "amin") and base.dtype == bool:
        return (_added if reduce == "amax" else _multiplied)(base, where, source)
    if reduce == "amax":
        return base.at[where].max(source, mode="drop")
    if reduce == "amin":
        return base.at[where].min(source, mode="drop")
    total = _added(base, where, source)
    if reduce == "sum":
        return total
    counts = jnp.full(base.shape, int(include_self), base.dtype)
    counts = counts.at[where].add(jnp.ones((), base.dtype), mode="drop")
    counts = jnp.maximum(counts, 1)
    return total / counts if jnp.issubdtype(base.dtype, jnp.inexact) else total // counts


def _identity(reduce: str, dtype: Any) -> Array:
    if reduce in ("sum", "mean"):
        return jnp.zeros((), dtype)
    if reduce == "prod":
        return jnp.ones((), dtype)
    if np.dtype(dtype).kind == "b":
        return jnp.array(reduce == "amin")
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.array(-jnp.inf if reduce == "amax" else jnp.inf, dtype)
    info = np.iinfo(dtype)
    return jnp.array(info.min if reduce == "amax" else info.max, dtype)


# --- masks


@lowering(
    "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor",
    compute="output",
    opmath=False,
    keep={"mask"},
)
def masked_fill(self: Array, mask: Array, value: Array) -> Array:
    """value where mask, else self."""
    return jnp.where(mask, convert(jnp.asarray(value), self.dtype), self)


@lowering("aten::masked_scatter")
def masked_scatter(self: Array, mask: Array, source: Array) -> Array:
    """The elements of source in order where mask, else self."""
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    self, mask = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask, shape).astype(bool)
    if source.size == 0:
        return self
    place = jnp.cumsum(mask.reshape(-1)) - 1
    found = jnp.take(source.reshape(-1), place, mode="clip").reshape(shape)
    return jnp.where(mask, found, self)


# --- flat positions


@lowering("aten::take", bounds=_flat_bounds)
def take(self: Array, index: Array) -> Array:
    """Elements at flat positions."""
    return self.reshape(-1).at[index].get(mode="clip")


@lowering("aten::put", bounds=_flat_bounds)
def put(self: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    """self with source at flat positions; with accumulate, added there."""
    if index.size == 0:
        return self
    write = _added if accumulate else _replaced
    return write(self.reshape(-1), (index.reshape(-1),), source.reshape(-1)).reshape(self.shape)
