"""Max, average and adaptive pooling over 1 to 3 dims, and their gradients.

The pooled dims are the last ones; what stands before them is batch. Maxima keep the flat position
of their element in the input plane, as torch does; equal elements give the first, NaN wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.registry import Array, lowering

Dims = tuple[int, ...]
_FEW_TAPS = 27  # up to here a gradient is a sum of padded slices, which the TPU fuses; then a scatter


def each(values: int | Sequence[int], rank: int) -> Dims:
    """One value per pooled dim."""
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * rank if len(values) == 1 else values


def output_size(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    """How many windows fit; in ceil mode none starts in the right padding."""
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil else 0)) // stride + 1
    return count - 1 if ceil and (count - 1) * stride >= size + pad else count


def plane_positions(shape: Dims, rank: int) -> Array:
    """The flat position of each element in its plane, broadcastable to `shape`."""
    plane = shape[len(shape) - rank:]
    return jnp.arange(prod(plane), dtype=jnp.int32).reshape(plane)


def _lowest(dtype: np.dtype) -> Array:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.array(-jnp.inf, dtype)
    return jnp.array(jnp.iinfo(dtype).min, dtype)


def _later(best: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    take = (other[0] > best[0]) | (other[0] != other[0])
    return jnp.where(take, other[0], best[0]), jnp.where(take, other[1], best[1])


def _max_along(
    values: Array, where: Array, axis: int, window: tuple[int, int, int, int], count: int
) -> tuple[Array, Array]:
    """Maxima of `count` windows along one dim; dims are independent, so a plane is done in turn."""
    kernel, stride, pad, dilation = window
    high = max((count - 1) * stride + dilation * (kernel - 1) + 1 - values.shape[axis] - pad, 0)
    pads = [(0, 0, 0)] * values.ndim
    pads[axis] = (pad, high, 0)
    values = lax.pad(values, _lowest(values.dtype), pads)
    where = lax.pad(where, jnp.array(0, where.dtype), pads)

    def tap(offset: int) -> tuple[Array, Array]:
        start, stop = offset * dilation, offset * dilation + (count - 1) * stride + 1
        return (
            lax.slice_in_dim(values, start, stop, stride, axis),
            lax.slice_in_dim(where, start, stop, stride, axis),
        )

    best = tap(0)
    for offset in range(1, kernel):
        best = _later(best, tap(offset))
    return best


def max_pool(
    x: Array, rank: int, kernel: Dims, stride: Dims, padding: Dims, dilation: Dims, ceil: bool
) -> tuple[Array, Array]:
    """Window maxima and their flat positions."""
    where = jnp.broadcast_to(plane_positions(x.shape, rank), x.shape)
    values = x
    for d in reversed(range(rank)):
        axis = x.ndim - rank + d
        count = output_size(x.shape[axis], kernel[d], stride[d], padding[d], dilation[d], ceil)
        window = (kernel[d], stride[d], padding[d], dilation[d])
        values, where = _max_along(values, where, axis, window, count)
    return values, where


@lowering("aten::max_pool2d_with_indices")
def max_pool2d_with_indices(
    self: Array, kernel_size: Dims, stride: Dims = (), padding: Dims = (0,), dilation: Dims = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    """Maxima over windows of [*, H, W] and their positions."""
    return _max_pool(self, 2, kernel_size, stride, padding, dilation, ceil_mode)


@lowering("aten::max_pool3d_with_indices")
def max_pool3d_with_indices(
    self: Array, kernel_size: Dims, stride: Dims = (), padding: Dims = (0,), dilation: Dims = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    """Maxima over windows of [*, D, H, W] and their positions."""
    return _max_pool(self, 3, kernel_size, stride, padding, dilation, ceil_mode)


def _max_pool(
    x: Array, rank: int, kernel: Dims, stride: Dims, padding: Dims, dilation: Dims, ceil: bool
) -> tuple[Array, Array]:
    window = _window(rank, kernel, stride, padding)
    return max_pool(x, rank, *window, each(dilation, rank), ceil)


@lowering("aten::max_pool2d_with_indices_backward", compute="output", keep={"indices"})
def max_pool2d_backward(
    grad_output: Array, self: Array, kernel_size: Dims, stride: Dims, padding: Dims, dilation: Dims,
    ceil_mode: bool, indices: Array,
) -> Array:
    """The gradient goes to the elements at `indices`."""
    return _max_pool_backward(
        grad_output, self, 2, kernel_size, stride, padding, dilation, indices
    )


@lowering("aten::max_pool3d_with_indices_backward", compute="output", keep={"indices"})
def max_pool3d_backward(
    grad_output: Array, self: Array, kernel_size: Dims, stride: Dims, padding: Dims, dilation: Dims,
    ceil_mode: bool, indices: Array,
) -> Array:
    """The gradient goes to the elements at `indices`."""
    return _max_pool_backward(
        grad_output, self, 3, kernel_size, stride, padding, dilation, indices
    )


def _max_pool_backward(
    grad: Array, x: Array, rank: int, kernel: Dims, stride: Dims, padding: Dims, dilation: Dims,
    indices: Array,
) -> Array:
    kernel, stride, padding = _window(rank, kernel, stride, padding)
    if prod(kernel) > _FEW_TAPS:
        return to_positions(grad, indices, x.shape, rank)
    return _spread(grad, indices, x.shape, kernel, stride, padding, each(dilation, rank))


def to_positions(values: Array, indices: Array, shape: Dims, rank: int) -> Array:
    """Sum `values` into zeros of `shape` at flat positions of each plane."""
    lead, plane = shape[:len(shape) - rank], shape[len(shape) - rank:]
    batch, pooled = prod(lead), prod(values.shape[len(shape) - rank:])
    flat = jnp.zeros((batch, prod(plane)), values.dtype)
    rows = jnp.arange(batch)[:, None]
    flat = flat.at[rows, indices.reshape(batch, pooled)].add(values.reshape(batch, pooled))
    return flat.reshape(shape)


def _spread(
    grad: Array, indices: Array, shape: Dims, kernel: Dims, stride: Dims, padding: Dims, dilation: Dims
) -> Array:
    rank = len(kernel)
    lead, plane = len(shape) - rank, shape[len(shape) - rank:]
    total = jnp.zeros(shape, grad.dtype)
    zero = jnp.zeros((), grad.dtype)
    for tap in product(*(range(k) for k in kernel)):
        expected, pads = jnp.zeros((), jnp.int32), [(0, 0, 0)] * lead
        for d in range(rank):
            low, count = tap[d] * dilation[d] - padding[d], grad.shape[lead + d]
            position = lax.broadcasted_iota(jnp.int32, grad.shape[lead:], d) * stride[d] + low
            expected = expected * plane[d] + position
            pads.append((low, plane[d] - low - (count - 1) * stride[d] - 1, stride[d] - 1))
        total = total + lax.pad(jnp.where(indices == expected, grad, zero), zero, pads)
    return total


def _average(
    x: Array, kernel: Dims, stride: Dims, padding: Dims, ceil: bool, include_pad: bool,
    divisor: int | None,
) -> Array:
    rank, lead = len(kernel), x.ndim - len(kernel)
    area: Array | int = 1
    pads = [(0, 0)] * lead
    windows: list[int] = []
    for d in range(rank):
        size, k, s, p = x.shape[lead + d], kernel[d], stride[d], padding[d]
        windows.append(output_size(size, k, s, p, 1, ceil))
        start = np.arange(windows[-1]) * s - p
        stop = np.minimum(start + k, size + p)
        if not include_pad:
            start, stop = np.maximum(start, 0), np.minimum(stop, size)
        area = area * jnp.asarray(stop - start, x.dtype).reshape(-1, *(1,) * (rank - 1 - d))
        pads.append((p, max((windows[-1] - 1) * s + k - size - p, 0)))
    zero = np.zeros((), x.dtype)[()]
    total = lax.reduce_window(x, zero, lax.add, (1,) * lead + kernel, (1,) * lead + stride, pads)
    total = total[(..., *(slice(n) for n in windows))]
    return total / (area if divisor is None else divisor)


@lowering("aten::avg_pool2d", compute="output")
def avg_pool2d(
    self: Array, kernel_size: Dims, stride: Dims = (), padding: Dims = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Array:
    """Means over windows of [*, H, W]."""
    window = _window(2, kernel_size, stride, padding)
    return _average(self, *window, ceil_mode, count_include_pad, divisor_override)


@lowering("aten::avg_pool3d", compute="output")
def avg_pool3d(
    self: Array, kernel_size: Dims, stride: Dims = (), padding: Dims = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Array:
    """Means over windows of [*, D, H, W]."""
    window = _window(3, kernel_size, stride, padding)
    return _average(self, *window, ceil_mode, count_include_pad, divisor_override)


def _window(rank: int, kernel: Dims, stride: Dims, padding: Dims) -> tuple[Dims, Dims, Dims]:
    """Kernel, stride (the kernel where none is given) and padding of each dim."""
    kernel = each(kernel, rank)
    return kernel, each(stride, rank) if stride else kernel, each(padding, rank)


@lowering("aten::avg_pool2d_backward", compute="output")
def avg_pool2d_backward(
    grad_output: Array, self: Array, kernel_size: Dims, stride: Dims, padding: Dims, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Array:
    """The transpose of avg_pool2d."""
    window = _window(2, kernel_size, stride, padding)
    return _transposed(
        lambda x: _average(x, *window, ceil_mode, count_include_pad, divisor_override), grad_output, self
    )


@lowering("aten::avg_pool3d_backward", compute="output")
def avg_pool3d_backward(
    grad_output: Array, self: Array, kernel_size: Dims, stride: Dims, padding: Dims, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Array:
    """The transpose of avg_pool3d."""
    window = _window(3, kernel_size, stride, padding)
    return _transposed(
        lambda x: _average(x, *window, ceil_mode, count_include_pad, divisor_override), grad_output, self
    )


def _transposed(linear: Callable[[Array], Array], grad: Array, like: Array) -> Array:
    (result,) = jax.linear_transpose(linear, jax.ShapeDtypeStruct(like.shape, grad.dtype))(grad)
    return result


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
        return x.reshape(*shape[:axis], count, size // count, *shape[axis + 1:])
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
    return _transposed(lambda x: adaptive_average(x, grad_output.shape[-2:]), grad_output, self)


@lowering("aten::_adaptive_avg_pool3d_backward", compute="output")
def adaptive_avg_pool3d_backward(grad_output: Array, self: Array) -> Array:
    """The transpose of the adaptive mean over [D, H, W]."""
    return _transposed(lambda x: adaptive_average(x, grad_output.shape[-3:]), grad_output, self)


@lowering("aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(self: Array, output_size: Dims) -> tuple[Array, Array]:
    """Maxima over windows that cover each dim evenly, and their positions."""
    rank = len(output_size)
    values, where = self, jnp.broadcast_to(plane_positions(self.shape, rank), self.shape)
    for d in reversed(range(rank)):
        axis = self.ndim - rank + d
        values = _split(values, axis, output_size[d], _lowest(self.dtype))
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
    samples = random_samples.reshape(*self.shape[:-rank], rank).astype(jnp.float32)
    for d in reversed(range(rank)):  # samples run from the last dim to the first
        axis = self.ndim - rank + d
        taps = _random_starts(samples[..., rank - 1 - d], self.shape[axis], output_size[d], kernel_size[d])
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
    flat = taps.reshape(*taps.shape[:lead], *(1,) * (moved.ndim - lead - 1), -1)
    found = jnp.take_along_axis(moved, flat, -1)
    return jnp.moveaxis(found.reshape(*found.shape[:-1], *taps.shape[-2:]), (-2, -1), (axis, axis + 1))


@lowering("aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward",
          keep={"indices"}, compute="output")
def fractional_max_pool_backward(
    grad_output: Array, self: Array, kernel_size: Dims, output_size: Dims, indices: Array
) -> Array:
    """The gradient goes to the elements at `indices`."""
    return to_positions(grad_output, indices, self.shape, len(output_size))
