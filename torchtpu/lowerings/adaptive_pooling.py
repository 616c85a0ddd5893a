"""Pooling over windows that differ in size: adaptive, fractional, and unpooling."""

from __future__ import annotations

from math import prod

import jax.numpy as jnp
import numpy as np

from torchtpu.lowerings.pooling import lowest, plane_positions, to_positions, transposed
from torchtpu.lowerings.registry import Array, lowering

Dims = tuple[int, ...]


def _bins(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Elements of each adaptive window, [count, longest], and which of them belong to it."""
    start = np.arange(count) * size // count
    stop = -(-(np.arange(count) + 1) * size // count)
    taps = start[:, None] + np.arange(int((stop - start).max(initial=0)))
    return np.minimum(taps, size - 1), taps < stop[:, None]


def _split(x: Array, axis: int, count: int, fill: Array) -> Array:
    """[.., size, ..] -> [.., count, longest, ..]: the elements of each adaptive window."""
    size, shape = x.shape[axis], x.shape
    if count and size % count == 0:
        return x.reshape(*shape[:axis], count, size // count, *shape[axis + 1 :])
    taps, member = _bins(size, count)
    found = jnp.take(x, taps, axis=axis)
    mask = member.reshape(1, *member.shape, *(1,) * (x.ndim - axis - 1))
    return jnp.where(mask, found, fill)


def adaptive_average(x: Array, output_size: Dims) -> Array:
    """Means over windows that cover each of the last dims evenly."""
    for d, count in enumerate(output_size):
        axis = x.ndim - len(output_size) + d
        _, member = _bins(x.shape[axis], count)
        sizes = jnp.asarray(member.sum(1), x.dtype).reshape(-1, *(1,) * (x.ndim - axis - 1))
        x = _split(x, axis, count, jnp.zeros((), x.dtype)).sum(axis + 1) / sizes
    return x


@lowering("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d", compute="output")
def adaptive_avg_pool(self: Array, output_size: Dims) -> Array:
    """Means over windows that cover each dim evenly."""
    return adaptive_average(self, output_size)


@lowering("aten::_adaptive_avg_pool2d_backward", compute="output")
def adaptive_avg_pool2d_backward(grad_output: Array, self: Array) -> Array:
    """The transpose of the adaptive mean over [H, W]."""
    return transposed(lambda x: adaptive_average(x, grad_output.shape[-2:]), grad_output, self)


@lowering("aten::_adaptive_avg_pool3d_backward", compute="output")
def adaptive_avg_pool3d_backward(grad_output: Array, self: Array) -> Array:
    """The transpose of the adaptive mean over [D, H, W]."""
    return transposed(lambda x: adaptive_average(x, grad_output.shape[-3:]), grad_output, self)


@lowering("aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(self: Array, output_size: Dims) -> tuple[Array, Array]:
    """Maxima over windows that cover each dim evenly, and their positions."""
    rank = len(output_size)
    values, where = self, jnp.broadcast_to(plane_positions(self.shape, rank), self.shape)
    for d in reversed(range(rank)):
        axis = self.ndim - rank + d
        values = _split(values, axis, output_size[d], lowest(self.dtype))
        where = _split(where, axis, output_size[d], jnp.zeros((), where.dtype))
        key = jnp.where(values != values, jnp.inf, values) if values.dtype.kind in "fV" else values
        best = jnp.argmax(key, axis + 1, keepdims=True)
        values, where = (
            jnp.take_along_axis(a, best, axis + 1).squeeze(axis + 1) for a in (values, where)
        )
    return values, where


@lowering("aten::adaptive_max_pool2d_backward", compute="output", keep={"indices"})
def adaptive_max_pool2d_backward(grad_output: Array, self: Array, indices: Array) -> Array:
    """The gradient goes to the elements at `indices`."""
    return to_positions(grad_output, indices, self.shape, 2)


@lowering("aten::adaptive_max_pool3d_backward", compute="output", keep={"indices"})
def adaptive_max_pool3d_backward(grad_output: Array, self: Array, indices: Array) -> Array:
    """The gradient goes to the elements at `indices`."""
    return to_positions(grad_output, indices, self.shape, 3)


@lowering("aten::max_unpool2d")
def max_unpool2d(self: Array, indices: Array, output_size: Dims) -> Array:
    """Values at their positions in a plane of zeros."""
    return _unpool(self, indices, output_size)


@lowering("aten::max_unpool3d")
def max_unpool3d(
    self: Array, indices: Array, output_size: Dims, stride: Dims, padding: Dims
) -> Array:
    """Values at their positions in a volume of zeros."""
    return _unpool(self, indices, output_size)


def _unpool(x: Array, indices: Array, output_size: Dims) -> Array:
    rank = len(output_size)
    batch = prod(x.shape[:-rank])
    flat = jnp.zeros((batch, prod(output_size)), x.dtype)
    rows = jnp.arange(batch)[:, None]
    flat = flat.at[rows, indices.reshape(batch, -1)].set(x.reshape(batch, -1))
    return flat.reshape(*x.shape[:-rank], *output_size)


@lowering("aten::fractional_max_pool2d", "aten::fractional_max_pool3d", keep={"random_samples"})
def fractional_max_pool(
    self: Array, kernel_size: Dims, output_size: Dims, random_samples: Array
) -> tuple[Array, Array]:
    """Maxima over windows whose starts are drawn per channel (Graham 2014, section 2)."""
    rank = len(output_size)
    values = self
    where = jnp.broadcast_to(plane_positions(self.shape, rank), self.shape)
    samples = random_samples.reshape(-1, rank)[: prod(self.shape[:-rank])]  # a batch's first: ours
    samples = samples.reshape(*self.shape[:-rank], rank).astype(jnp.float32)
    for d in reversed(range(rank)):
        sample = samples[..., d if rank == 3 else 1 - d]  # torch draws in 2d for the last dim first
        axis = self.ndim - rank + d
        taps = _random_starts(sample, self.shape[axis], output_size[d], kernel_size[d])
        taps = taps[..., None] + jnp.arange(kernel_size[d])  # [*, count, kernel]
        values, where = (_gathered(a, taps, axis, self.ndim - rank) for a in (values, where))
        best = jnp.argmax(values, axis + 1, keepdims=True)
        values, where = (
            jnp.take_along_axis(a, best, axis + 1).squeeze(axis + 1) for a in (values, where)
        )
    return values, where


def _random_starts(sample: Array, size: int, count: int, kernel: int) -> Array:
    if count == 1:
        return jnp.full((*sample.shape, 1), size - kernel)
    alpha = (size - kernel) / (count - 1)
    steps = jnp.arange(count - 1, dtype=jnp.float32)
    starts = jnp.floor((steps + sample[..., None]) * alpha) - jnp.floor(sample[..., None] * alpha)
    last = jnp.full((*sample.shape, 1), size - kernel)
    return jnp.concatenate([starts.astype(last.dtype), last], -1)


def _gathered(x: Array, taps: Array, axis: int, lead: int) -> Array:
    """[*lead, .., size, ..] with taps [*lead, count, kernel] -> [*lead, .., count, kernel, ..]."""
    moved = jnp.moveaxis(x, axis, -1)
    count = prod(taps.shape[lead:])
    flat = taps.reshape(*taps.shape[:lead], *(1,) * (moved.ndim - lead - 1), count)
    found = jnp.take_along_axis(moved, flat, -1)
    return jnp.moveaxis(
        found.reshape(*found.shape[:-1], *taps.shape[-2:]), (-2, -1), (axis, axis + 1)
    )


@lowering(
    "aten::fractional_max_pool2d_backward",
    "aten::fractional_max_pool3d_backward",
    keep={"indices"},
    compute="output",
)
def fractional_max_pool_backward(
    grad_output: Array, self: Array, kernel_size: Dims, output_size: Dims, indices: Array
) -> Array:
    """The gradient goes to the elements at `indices`."""
    return to_positions(grad_output, indices, self.shape, len(output_size))
