"""Max and average pooling over windows of one size, and their gradients.

The pooled dims are the last ones; what stands before them is batch. Maxima keep the flat position
of their element in the input plane, as torch does; equal elements give the first, NaN wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.registry import Array, lowering

Dims = tuple[int, ...]
_FEW_TAPS = 27  # up to here a gradient is a sum of padded slices, which fuses; then a scatter


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
    plane = shape[len(shape) - rank :]
    return jnp.arange(prod(plane), dtype=jnp.int32).reshape(plane)


def lowest(dtype: Any) -> Array:
    """The smallest value of a dtype, as an array."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.array(-jnp.inf, dtype)
    return jnp.array(np.iinfo(dtype).min, dtype)


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
    values = lax.pad(values, lowest(values.dtype), pads)
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
    self: Array,
    kernel_size: Dims,
    stride: Dims = (),
    padding: Dims = (0,),
    dilation: Dims = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    """Maxima over windows of [*, H, W] and their positions."""
    return _max_pool(self, 2, kernel_size, stride, padding, dilation, ceil_mode)


@lowering("aten::max_pool3d_with_indices")
def max_pool3d_with_indices(
    self: Array,
    kernel_size: Dims,
    stride: Dims = (),
    padding: Dims = (0,),
    dilation: Dims = (1,),
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
    grad_output: Array,
    self: Array,
    kernel_size: Dims,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    ceil_mode: bool,
    indices: Array,
) -> Array:
    """The gradient goes to the elements at `indices`."""
    return _max_pool_backward(grad_output, self, 2, kernel_size, stride, padding, dilation, indices)


@lowering("aten::max_pool3d_with_indices_backward", compute="output", keep={"indices"})
def max_pool3d_backward(
    grad_output: Array,
    self: Array,
    kernel_size: Dims,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    ceil_mode: bool,
    indices: Array,
) -> Array:
    """The gradient goes to the elements at `indices`."""
    return _max_pool_backward(grad_output, self, 3, kernel_size, stride, padding, dilation, indices)


def _max_pool_backward(
    grad: Array,
    x: Array,
    rank: int,
    kernel: Dims,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    indices: Array,
) -> Array:
    kernel, stride, padding = _window(rank, kernel, stride, padding)
    if prod(kernel) > _FEW_TAPS:
        return to_positions(grad, indices, x.shape, rank)
    return _spread(grad, indices, x.shape, kernel, stride, padding, each(dilation, rank))


def to_positions(values: Array, indices: Array, shape: Dims, rank: int) -> Array:
    """Sum `values` into zeros of `shape` at flat positions of each plane."""
    lead, plane = shape[: len(shape) - rank], shape[len(shape) - rank :]
    batch, pooled = prod(lead), prod(values.shape[len(shape) - rank :])
    flat = jnp.zeros((batch, prod(plane)), values.dtype)
    rows = jnp.arange(batch)[:, None]
    flat = flat.at[rows, indices.reshape(batch, pooled)].add(values.reshape(batch, pooled))
    return flat.reshape(shape)


def _spread(
    grad: Array,
    indices: Array,
    shape: Dims,
    kernel: Dims,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
) -> Array:
    rank = len(kernel)
    lead, plane = len(shape) - rank, shape[len(shape) - rank :]
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
    x: Array,
    kernel: Dims,
    stride: Dims,
    padding: Dims,
    ceil: bool,
    include_pad: bool,
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
    self: Array,
    kernel_size: Dims,
    stride: Dims = (),
    padding: Dims = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """Means over windows of [*, H, W]."""
    window = _window(2, kernel_size, stride, padding)
    return _average(self, *window, ceil_mode, count_include_pad, divisor_override)


@lowering("aten::avg_pool3d", compute="output")
def avg_pool3d(
    self: Array,
    kernel_size: Dims,
    stride: Dims = (),
    padding: Dims = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
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
    grad_output: Array,
    self: Array,
    kernel_size: Dims,
    stride: Dims,
    padding: Dims,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    """The transpose of avg_pool2d."""
    window = _window(2, kernel_size, stride, padding)
    return transposed(
        lambda x: _average(x, *window, ceil_mode, count_include_pad, divisor_override),
        grad_output,
        self,
    )


@lowering("aten::avg_pool3d_backward", compute="output")
def avg_pool3d_backward(
    grad_output: Array,
    self: Array,
    kernel_size: Dims,
    stride: Dims,
    padding: Dims,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    """The transpose of avg_pool3d."""
    window = _window(3, kernel_size, stride, padding)
    return transposed(
        lambda x: _average(x, *window, ceil_mode, count_include_pad, divisor_override),
        grad_output,
        self,
    )


def transposed(linear: Callable[[Array], Array], grad: Array, like: Array) -> Array:
    """Apply the transpose of a linear map to a gradient; `like` is the map's input."""
    (result,) = jax.linear_transpose(linear, like.astype(grad.dtype))(grad)
    return result
