"""Interpolation of the last dims, grid sampling, and sliding blocks (im2col, col2im).

Interpolation is linear and separable: each dim has a rule that gives, for every output element, the
input elements that it reads and their weights. A gradient is the product with the transposed matrix
of those weights, since scatters are slow on the TPU.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.registry import Array, lowering

Dims = tuple[int, ...]
Taps = tuple[np.ndarray, np.ndarray]  # indices and weights, both [size, taps]
Real = Any  # np.float32 or np.float64: what places and weights are computed in
Rule = Callable[[int, int, bool, float | None, Real], Taps]  # sizes, align_corners, scale
_SCALES = {"scales", "scales_d", "scales_h", "scales_w"}


def _step(size: int, count: int, scale: float | None, real: Real) -> Any:
    """Input elements per output element."""
    return real(1.0 / scale) if scale else real(size) / real(max(count, 1))


def _picking(offset: float) -> Rule:
    """The rule that takes the element at a place; torch computes it in float32 for all dtypes."""

    def rule(size: int, count: int, aligned: bool, scale: float | None, real: Real) -> Taps:
        steps = np.arange(count, dtype=np.float32) + np.float32(offset)
        place = steps * _step(size, count, scale, np.float32)
        index = np.minimum(np.floor(place).astype(np.int32), size - 1)
        return index[:, None], np.ones((count, 1))

    return rule


def _places(size: int, count: int, aligned: bool, scale: float | None, real: Real) -> np.ndarray:
    """Where in the input each output element lies."""
    steps: np.ndarray = np.arange(count, dtype=real)
    if aligned:
        steps *= real((size - 1) / (count - 1) if count > 1 else 0)
    else:
        steps = (steps + real(0.5)) * _step(size, count, scale, real) - real(0.5)
    return steps


def _linear(size: int, count: int, aligned: bool, scale: float | None, real: Real) -> Taps:
    place = np.maximum(_places(size, count, aligned, scale, real), 0)
    low = np.minimum(np.floor(place).astype(np.int32), size - 1)
    part = np.clip(place - low, 0, 1)
    return np.stack([low, np.minimum(low + 1, size - 1)], 1), np.stack([1 - part, part], 1)


def _in_half(taps: Taps, half: Any) -> Taps:
    """The weights of linear interpolation as the CPU keeps them; it adds up in float32."""
    second = taps[1][:, 1].astype(half).astype(np.float32)
    first = (1 - second).astype(half).astype(np.float32)
    return taps[0], np.stack([first, second], 1)


def _cubic(size: int, count: int, aligned: bool, scale: float | None, real: Real) -> Taps:
    place = _places(size, count, aligned, scale, real)
    low = np.floor(place).astype(np.int32)
    offsets = np.arange(-1, 3)
    weights = np.stack([_keys(np.abs(place - low - o), -0.75) for o in offsets], 1)
    return np.clip(low[:, None] + offsets, 0, size - 1), weights


def _keys(x: np.ndarray, a: float) -> np.ndarray:
    """Cubic convolution kernel (Keys 1981, equation 15) at distances x >= 0."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _smooth(kernel: Callable[[np.ndarray], np.ndarray], reach: float) -> Rule:
    """A rule that widens its kernel where the output is smaller, so that nothing is skipped."""

    def rule(size: int, count: int, aligned: bool, scale: float | None, real: Real) -> Taps:
        step = float(_step(size, count, scale, real))
        if aligned:
            step = (size - 1) / (count - 1) if count > 1 else 0.0
        width = max(step, 1.0)
        center = step * (np.arange(count) + 0.5)
        first = np.maximum((center - reach * width + 0.5).astype(np.int32), 0)
        last = np.minimum((center + reach * width + 0.5).astype(np.int32), size)
        taps = first[:, None] + np.arange(max(int((last - first).max(initial=1)), 1))
        weights = kernel(np.abs((taps - center[:, None] + 0.5) / width))
        weights = np.where(taps < last[:, None], weights, 0)
        total = weights.sum(1, keepdims=True)
        return np.minimum(taps, size - 1), weights / np.where(total == 0, 1, total)

    return rule


def _sinc3(x: np.ndarray) -> np.ndarray:
    return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _matrix(taps: Taps, size: int, dtype: np.dtype) -> Array:
    """[count, size]: the weight of each input element in each output element."""
    index, weights = taps
    if index.shape[1] > 4:  # as many as the output is smaller: one scatter, and not a sum of each
        rows = jnp.arange(len(index))[:, None]
        return jnp.zeros((len(index), size), dtype).at[rows, index].add(jnp.asarray(weights, dtype))
    columns = jnp.arange(size)
    hits = [
        jnp.where(index[:, t, None] == columns, jnp.asarray(weights[:, t, None], dtype), 0)
        for t in range(index.shape[1])
    ]
    return sum(hits[1:], hits[0])


def _resample(x: Array, axis: int, taps: Taps) -> Array:
    index, weights = taps
    shape = (-1, *(1,) * (x.ndim - axis - 1))
    if index.shape[1] > 4:
        return _times(x, axis, _matrix(taps, x.shape[axis], x.dtype).T)
    if index.shape[1] == 1:
        return _picked(x, axis, index[:, 0])
    parts = (
        jnp.take(x, index[:, t], axis=axis) * jnp.asarray(weights[:, t], x.dtype).reshape(shape)
        for t in range(index.shape[1])
    )
    total: Array = sum(parts)
    return total


def _picked(x: Array, axis: int, index: np.ndarray) -> Array:
    factor = len(index) // max(x.shape[axis], 1)
    if factor and np.array_equal(index, np.arange(x.shape[axis]).repeat(factor)):
        return jnp.repeat(x, factor, axis=axis)
    return jnp.take(x, index, axis=axis)


def _times(x: Array, axis: int, matrix: Array) -> Array:
    moved = jnp.moveaxis(x, axis, -1)
    found = jnp.matmul(moved, matrix, precision=lax.Precision.HIGHEST)
    return jnp.moveaxis(found, -1, axis)


def _gradient(grad: Array, axis: int, taps: Taps, size: int) -> Array:
    index, count = taps[0], grad.shape[axis]
    factor = count // max(size, 1)
    if (
        index.shape[1] == 1
        and factor
        and np.array_equal(index[:, 0], np.arange(size).repeat(factor))
    ):
        shape = (*grad.shape[:axis], size, factor, *grad.shape[axis + 1 :])
        return grad.reshape(shape).sum(axis + 1)
    return _times(grad, axis, _matrix(taps, size, grad.dtype))


def _real(x: Array) -> Real:
    return np.float64 if x.dtype == np.float64 else np.float32


def _enter(name: str, rule: Rule) -> None:
    """Enter an interpolation of any number of dims and its gradient."""

    def forward(
        self: Array,
        output_size: Dims,
        align_corners: bool = False,
        scales: float | None = None,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
        half: Any = None,
    ) -> Array:
        rank = len(output_size)
        each = (scales,) if rank == 1 else (scales_d, scales_h, scales_w)[3 - rank :]
        for d, count in enumerate(output_size):
            size = self.shape[2 + d]
            if size != count or not align_corners:
                taps = rule(size, count, align_corners, each[d], _real(self))
                rounds = half is not None and rule is _linear and rank != 2
                self = _resample(self, 2 + d, _in_half(taps, half) if rounds else taps)
        return self

    def backward(
        grad_output: Array,
        output_size: Dims,
        input_size: Dims,
        align_corners: bool = False,
        scales: float | None = None,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Array:
        rank = len(output_size)
        each = (scales,) if rank == 1 else (scales_d, scales_h, scales_w)[3 - rank :]
        for d, count in enumerate(output_size):
            size = input_size[2 + d]
            taps = rule(size, count, align_corners, each[d], _real(grad_output))
            grad_output = _gradient(grad_output, 2 + d, taps, size)
        return grad_output

    lowering(f"aten::{name}", compute="output", static=_SCALES, half=True)(forward)
    lowering(f"aten::{name}_backward", compute="output", static=_SCALES)(backward)


for _rank in (1, 2, 3):
    _enter(f"upsample_nearest{_rank}d", _picking(0.0))
    _enter(f"_upsample_nearest_exact{_rank}d", _picking(0.5))
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _enter(_name, _linear)
_enter("upsample_bicubic2d", _cubic)
_enter("_upsample_bilinear2d_aa", _smooth(lambda x: np.maximum(1 - x, 0), 1.0))
_enter("_upsample_bicubic2d_aa", _smooth(lambda x: _keys(x, -0.5), 2.0))
_enter("_upsample_lanczos2d_aa", _smooth(_sinc3, 3.0))


# --- grid sampling


def _unnormalized(place: Array, size: int, aligned: bool) -> Array:
    """[-1, 1] -> element positions."""
    return (place + 1) / 2 * (size - 1) if aligned else ((place + 1) * size - 1) / 2


def _reflect(place: Array, low: float, high: float) -> Array:
    """Positions mirrored at both ends until they lie between."""
    if low == high:
        return jnp.zeros_like(place)
    span = high - low
    distance = jnp.where(place < low, low - place, place - low)
    turns, rest = jnp.floor(distance / span), lax.rem(distance, jnp.full_like(distance, span))
    return jnp.where(turns % 2 == 0, rest + low, high - rest)


def _within(place: Array, size: int, padding_mode: int, aligned: bool) -> Array:
    """Positions under torch's padding modes 0 zeros, 1 border, 2 reflection."""
    if padding_mode == 0:
        return place
    if padding_mode == 2:
        ends = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
        place = _reflect(place, *ends)
    # no gradient at the ends themselves, as in torch
    return jnp.where(place <= 0, 0, jnp.where(place >= size - 1, size - 1, place))


def _read(x: Array, places: list[Array]) -> Array:
    """[N, C, *plane] at integer positions [N, *out] per dim; outside gives 0."""
    inside, flat = jnp.ones((), bool), jnp.zeros((), jnp.int32)
    for place, size in zip(places, x.shape[2:], strict=True):
        inside = inside & (place >= 0) & (place <= size - 1)
        flat = flat * size + jnp.clip(place, 0, size - 1).astype(jnp.int32)
    batch, out = flat.shape[0], flat.shape[1:]
    planes = x.reshape(*x.shape[:2], -1)
    found = jnp.take_along_axis(planes, flat.reshape(batch, 1, -1), axis=2)
    return jnp.where(inside[:, None], found.reshape(*x.shape[:2], *out), 0)


def grid_sample(input: Array, grid: Array, mode: int, padding_mode: int, aligned: bool) -> Array:
    """[N, C, *plane] at grid [N, *out, rank]: mode 0 linear, 1 nearest, 2 cubic."""
    sizes, out = input.shape[2:], grid.shape[1:-1]
    rank = len(sizes)
    grid = grid.reshape(grid.shape[0], prod(out), rank)

    def bounded(place: Array, d: int) -> Array:
        return _within(place, sizes[d], padding_mode, aligned)

    # the grid's last dim names the plane's dims from the last to the first
    places = [_unnormalized(grid[..., rank - 1 - d], sizes[d], aligned) for d in range(rank)]
    if mode != 2:
        places = [bounded(p, d) for d, p in enumerate(places)]
    if mode == 1:
        found = _read(input, [jnp.round(p) for p in places])
        return found.reshape(*input.shape[:2], *out)
    near, weight = [], jnp.ones((), input.dtype)
    for d, place in enumerate(places):
        low = lax.stop_gradient(jnp.floor(place))
        # [N, out] -> [N, 1.., taps, ..1, out]: the taps of dim d stand at 1 + d
        low, part = (jnp.expand_dims(v, range(1, 1 + rank)) for v in (low, place - low))
        offsets = range(-1, 3) if mode == 2 else range(2)
        taps = jnp.concatenate([low + o for o in offsets], 1 + d)
        near.append(bounded(taps, d) if mode == 2 else taps)
        weight = weight * jnp.concatenate([_grid_weight(part, o, mode) for o in offsets], 1 + d)
    found = jnp.sum(_read(input, near) * weight[:, None], range(2, 2 + rank))
    return found.reshape(*input.shape[:2], *out)


def _grid_weight(part: Array, offset: int, mode: int) -> Array:
    if mode == 0:
        return part if offset else 1 - part
    distance, a = jnp.abs(part - offset), -0.75
    if offset in (0, 1):
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1
    return ((distance - 5) * distance + 8) * distance * a - 4 * a


@lowering("aten::grid_sampler_2d", "aten::grid_sampler_3d", compute="output")
def grid_sampler(
    input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Array:
    """input at the positions of a grid in [-1, 1]."""
    return grid_sample(input, grid, interpolation_mode, padding_mode, align_corners)


@lowering("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward", compute="output")
def grid_sampler_backward(
    grad_output: Array,
    input: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: tuple[bool, bool],
) -> tuple[Array | None, Array | None]:
    """Gradients of input and grid."""

    def sample(x: Array, g: Array) -> Array:
        return grid_sample(x, g, interpolation_mode, padding_mode, align_corners)

    if not output_mask[0]:
        return None, jax.vjp(lambda g: sample(input, g), grid)[1](grad_output)[0]
    grads = jax.vjp(sample, input, grid)[1](grad_output)
    return grads[0], grads[1] if output_mask[1] else None


# --- sliding blocks


def _blocks(x: Array, kernel: Dims, dilation: Dims, padding: Dims, stride: Dims) -> Array:
    """[N, C, H, W] -> [N, C * kh * kw, windows]."""
    pads = [(0, 0), (0, 0), *((p, p) for p in padding)]
    padded = jnp.pad(x, pads)
    counts = [
        (n - d * (k - 1) - 1) // s + 1
        for n, d, k, s in zip(padded.shape[2:], dilation, kernel, stride, strict=True)
    ]
    taps = [
        padded[
            (
                ...,
                *(
                    slice(o * d, o * d + (c - 1) * s + 1, s)
                    for o, d, c, s in zip(tap, dilation, counts, stride, strict=True)
                ),
            )
        ]
        for tap in product(*(range(k) for k in kernel))
    ]
    stacked = jnp.stack(taps, axis=2)  # [N, C, kh * kw, oh, ow]
    return stacked.reshape(x.shape[0], x.shape[1] * prod(kernel), prod(counts))


def _batched(x: Array, rank: int) -> tuple[Array, bool]:
    return (x, False) if x.ndim == rank else (x[None], True)


@lowering("aten::im2col")
def im2col(self: Array, kernel_size: Dims, dilation: Dims, padding: Dims, stride: Dims) -> Array:
    """Blocks under a sliding kernel as columns."""
    x, single = _batched(self, 4)
    columns = _blocks(x, kernel_size, dilation, padding, stride)
    return columns[0] if single else columns


@lowering("aten::col2im", compute="output")
def col2im(
    self: Array, output_size: Dims, kernel_size: Dims, dilation: Dims, padding: Dims, stride: Dims
) -> Array:
    """Sums columns back into the image: the transpose of im2col."""
    columns, single = _batched(self, 3)
    shape = (columns.shape[0], columns.shape[1] // prod(kernel_size), *output_size)
    like = jnp.zeros(shape, columns.dtype)
    back = jax.linear_transpose(lambda x: _blocks(x, kernel_size, dilation, padding, stride), like)
    (image,) = back(columns)
    return image[0] if single else image
