"""Static halves of ops whose result's shape depends on data: padded to a size the host chose."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, convert, lowering


def true_places(mask: Array, size: int) -> Array:
    """Flat indices of the first `size` true elements, in order; 0 behind the last one."""
    flat = convert(mask, bool).reshape(-1)
    rank = jnp.cumsum(flat, dtype=jnp.int32) - 1
    target = jnp.where(flat & (rank < size), rank, size)
    places = lax.iota(jnp.int32 if flat.size < 2**31 else jnp.int64, flat.size)
    return jnp.zeros(size, places.dtype).at[target].set(places, mode="drop")


@lowering("torchtpu::nonzero")
def nonzero(self: Array, size: int) -> Array:
    """[size, rank] indices of the elements that are not 0."""
    places = true_places(self, size)
    if self.ndim == 0 or self.size == 0:
        return jnp.zeros((size, self.ndim), jnp.int64)
    return jnp.stack(jnp.unravel_index(places, self.shape), -1).reshape(size, self.ndim)


@lowering("aten::nonzero_static")
def nonzero_static(self: Array, size: int, fill_value: int = -1) -> Array:
    """Indices of the first `size` elements that are not 0; rows of fill_value behind the last."""
    count = jnp.sum(convert(self, bool), dtype=jnp.int32)
    row = lax.broadcasted_iota(jnp.int32, (size, self.ndim), 0)
    return jnp.where(row < count, nonzero(self, size), fill_value)


@lowering("torchtpu::masked_select")
def masked_select(self: Array, mask: Array, size: int) -> Array:
    """The first `size` elements where mask is true."""
    return self.reshape(-1)[true_places(mask, size)] if self.size else jnp.zeros(size, self.dtype)


@lowering("torchtpu::bincount")
def bincount(self: Array, weights: Array | None, size: int) -> Array:
    """How often each number below `size` occurs, or the sum of its weights."""
    if weights is None:
        return jnp.zeros(size, jnp.int64).at[self].add(1, mode="drop")
    dtype = jnp.float32 if weights.dtype == jnp.float32 else jnp.float64
    return jnp.zeros(size, dtype).at[self].add(weights.astype(dtype), mode="drop")


@lowering("torchtpu::repeat_interleave")
def repeat_interleave(repeats: Array, size: int) -> Array:
    """Each index as often as repeats says, up to `size` elements."""
    index = jnp.arange(repeats.size, dtype=repeats.dtype)
    return jnp.repeat(index, repeats, total_repeat_length=size)


@lowering("torchtpu::equal_values", compute="inputs")
def equal_values(self: Array, other: Array) -> Array:
    """Tell whether all elements are equal."""
    return jnp.all(self == other)


@lowering("torchtpu::distinct")
def distinct(self: Array, sort: bool) -> tuple[Array, Array, Array, Array]:
    """Rows in order, the places where each distinct row starts, each row's number, the count.

    Entry i of the starts belongs to distinct row i; behind the last one stands the length.
    """
    rows = self[:, None] if self.ndim == 1 else self
    length = rows.shape[0]
    order = lax.iota(jnp.int32, length)
    if sort:
        columns = tuple(convert(c, jnp.uint8) if c.dtype == bool else c for c in rows.T)
        order = lax.sort((*columns, order), num_keys=len(columns), is_stable=True)[-1]
        rows = rows[order]
    new = jnp.any(rows[1:] != rows[:-1], axis=1)
    new = jnp.concatenate([jnp.ones(1, bool), new])
    number = jnp.cumsum(new, dtype=jnp.int32) - 1
    starts = jnp.full(length, length, jnp.int32)
    starts = starts.at[jnp.where(new, number, length)].set(lax.iota(jnp.int32, length), mode="drop")
    inverse = jnp.zeros(length, jnp.int32).at[order].set(number)
    return rows.reshape(self.shape), starts, inverse, number[-1] + 1


@lowering("torchtpu::distinct_parts")
def distinct_parts(rows: Array, starts: Array, size: int) -> tuple[Array, Array]:
    """The first `size` distinct rows and how often each occurs."""
    ends = jnp.append(starts, rows.shape[0])[1 : size + 1]
    starts = starts[:size]
    return rows[jnp.minimum(starts, rows.shape[0] - 1)], ends - starts
