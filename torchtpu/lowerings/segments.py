"""Reductions of the segments of a dim that lengths or offsets name, and their gradient."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu.lowerings.registry import Array, lowering

_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}


class _Segments:
    """Data [*outer, size, *inner] as [outer, size, inner], and the segment of each element."""

    def __init__(self, data: Array, lengths: Array | None, offsets: Array | None, axis: int):
        self.outer, self.inner = data.shape[:axis], data.shape[axis + 1 :]
        self.rows, self.size, self.columns = prod(self.outer), data.shape[axis], prod(self.inner)
        if offsets is None:
            assert lengths is not None
            ends = jnp.cumsum(lengths.reshape(self.rows, lengths.shape[axis]), 1)
            starts = ends - lengths.reshape(ends.shape)
        else:
            offsets = offsets.reshape(self.rows, offsets.shape[axis])
            starts, ends = offsets[:, :-1], offsets[:, 1:]
        self.count = ends.shape[1]
        self.lengths = (ends - starts)[:, :, None]  # [outer, segments, 1]
        place = jnp.arange(self.size)
        found = jax.vmap(lambda e: jnp.searchsorted(e, place, side="right"))(ends)
        first = starts[:, :1] if self.count else jnp.zeros((self.rows, 1), starts.dtype)
        self.of_element = jnp.where(place < first, self.count, found)  # `count`: in no segment

    def flat(self, data: Array) -> Array:
        return data.reshape(self.rows, -1, self.columns)

    def reduced(self, values: Array, reduce: str, initial: Array | float) -> Array:
        """[outer, size, inner] -> [outer, segments, inner], from `initial` on."""
        made = jnp.full((self.rows, self.count, self.columns), initial, values.dtype)
        at = made.at[jnp.arange(self.rows)[:, None], self.of_element]
        method = {"max": at.max, "min": at.min, "prod": at.multiply}.get(reduce, at.add)
        return method(values, mode="drop")

    def spread(self, values: Array) -> Array:
        """[outer, segments, inner] -> [outer, size, inner]: each element's; 0 in no segment."""
        padded = jnp.pad(values, [(0, 0), (0, 1), (0, 0)])
        return jnp.take_along_axis(padded, self.of_element[:, :, None], 1)

    def shaped(self, values: Array) -> Array:
        return values.reshape(*self.outer, -1, *self.inner)


@lowering("aten::segment_reduce", compute="output", keep={"lengths", "offsets"})
def segment_reduce(
    data: Array,
    reduce: str,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Array | None = None,
) -> Array:
    """The sum, mean, max, min or prod of each segment; NaN is the mean of an empty one."""
    segments, reduce = _Segments(data, lengths, offsets, axis % data.ndim), _plain(reduce)
    start = _NEUTRAL[reduce] if initial is None else initial
    found = segments.reduced(segments.flat(data), reduce, start)
    if reduce == "mean":
        means = found / jnp.maximum(segments.lengths, 1).astype(found.dtype)
        found = jnp.where(segments.lengths > 0, means, jnp.nan if initial is None else found)
    return segments.shaped(found)


@lowering("aten::_segment_reduce_backward", compute="output", keep={"lengths", "offsets"})
def segment_reduce_backward(
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Array | None = None,
) -> Array:
    """The gradient of data. Equal extrema share a positive gradient, as in torch's own kernels."""
    segments, reduce = _Segments(data, lengths, offsets, axis % data.ndim), _plain(reduce)
    values, grad = segments.flat(data), segments.flat(grad)
    each = segments.spread(grad)
    if reduce in ("max", "min"):
        chosen = (values != values) | (values == segments.spread(segments.flat(output)))
        chosen &= (segments.of_element < segments.count)[:, :, None]
        ties = segments.spread(segments.reduced(chosen.astype(values.dtype), "sum", 0))
        each = jnp.where(chosen, jnp.where(each > 0, each / jnp.maximum(ties, 1), each), 0)
    elif reduce == "mean":
        each = segments.spread(grad / jnp.maximum(segments.lengths, 1).astype(grad.dtype))
    elif reduce == "prod":
        start = 1.0 if initial is None else initial
        each = each * _products_of_others(segments, values, start)
    return segments.shaped(each)


def _plain(reduce: str) -> str:
    """The name of a reduction; torch has two for extrema."""
    return reduce.removeprefix("a") if reduce in ("amax", "amin") else reduce


def _products_of_others(segments: _Segments, values: Array, initial: Array | float) -> Array:
    """For each element the product of all others of its segment and of `initial`."""
    zero, bad = values == 0, values != values

    def others(mask: Array) -> Array:
        """How many other elements of the segment are in the mask."""
        counts = segments.reduced(mask.astype(values.dtype), "sum", 0)
        return segments.spread(counts) - mask.astype(values.dtype)

    plain = jnp.where(zero | bad, 1, values)
    product = segments.spread(segments.reduced(plain, "prod", initial)) / plain
    return jnp.where(others(bad) > 0, jnp.nan, jnp.where(others(zero) > 0, 0, product))
