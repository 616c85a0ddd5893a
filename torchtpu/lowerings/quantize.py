"""Quantization that is simulated in floats, and products with weights of 8 and 4 bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torchtpu.lowerings.registry import Array, lowering

Pair = tuple[Array, Array]
_LEAST_SCALE = 6.1e-5


def _level(x: Array, scale: Array, zero_point: Array) -> Array:
    """x / scale + zero point as an integer, half to even; the reciprocal is CPU's.

    A zero point that is an integer is added after rounding: halves go another way.
    """
    scaled = x * (1 / scale)
    if zero_point.dtype.kind == "f":
        return jnp.round(scaled + zero_point.astype(x.dtype))
    return jnp.round(scaled) + zero_point.astype(x.dtype)


def _fake(x: Array, scale: Array, zero_point: Array, low: int, high: int) -> Pair:
    """x rounded to the grid of an integer type, and where it lies within that type."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scale = jnp.asarray(scale).astype(wide.dtype)
    level = _level(wide, scale, zero_point)
    inside = (level >= low) & (level <= high)
    level = jnp.where(jnp.isnan(level), low, jnp.clip(level, low, high))
    return ((level - zero_point.astype(wide.dtype)) * scale).astype(x.dtype), inside


def _along(vector: Array, axis: int, rank: int) -> Array:
    """[C], to stand beside a tensor whose `axis` has C elements."""
    return vector.reshape(tuple(-1 if d == axis % rank else 1 for d in range(rank)))


@lowering("aten::fake_quantize_per_tensor_affine_cachemask", numbers={"zero_point"})
def fake_quantize_per_tensor(
    self: Array, scale: Array, zero_point: Array, quant_min: int, quant_max: int
) -> Pair:
    """(clamp(round(x / scale) + zero_point) - zero_point) * scale, and where it did not clamp."""
    return _fake(self, scale, jnp.asarray(zero_point), quant_min, quant_max)


@lowering("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def fake_quantize_per_tensor_qparams(
    self: Array,
    scale: Array,
    zero_point: Array,
    fake_quant_enabled: Array,
    quant_min: int,
    quant_max: int,
) -> Pair:
    """fake_quantize_per_tensor, or the input itself where a flag is 0."""
    point = zero_point.reshape(()).astype(jnp.int64)
    made, inside = _fake(self, scale.reshape(()), point, quant_min, quant_max)
    off = fake_quant_enabled.reshape(-1)[0] == 0
    return jnp.where(off, self, made), inside | off


@lowering("aten::fake_quantize_per_channel_affine_cachemask")
def fake_quantize_per_channel(
    self: Array, scale: Array, zero_point: Array, axis: int, quant_min: int, quant_max: int
) -> Pair:
    """fake_quantize_per_tensor with a scale and a zero point for each index of `axis`."""
    scale, zero_point = (_along(v, axis, self.ndim) for v in (scale, zero_point))
    return _fake(self, scale, zero_point, quant_min, quant_max)


def _integral(zero_point: Array, low: int, high: int) -> Array:
    return jnp.clip(jnp.round(zero_point), low, high).astype(jnp.int64)


def _learnable_backward(
    grad: Array, x: Array, scale: Array, zero_point: Array, low: int, high: int, factor: Array
) -> tuple[Array, Array, Array]:
    """Gradients at each element: learned step sizes, Esser et al. 2020, and Jain et al. 2020."""
    zero_point = zero_point.astype(x.dtype)
    level = _level(x, scale, zero_point)
    made = (jnp.clip(level, low, high) - zero_point) * scale
    inside = (level >= low) & (level <= high)
    end = jnp.where(level < low, low, high)
    of_scale = jnp.where(inside, (made - x) / scale, end - zero_point)
    return (
        jnp.where(inside, grad, 0),
        of_scale * grad * factor,
        jnp.where(inside, 0, -scale * grad * factor),
    )


@lowering("aten::_fake_quantize_learnable_per_tensor_affine")
def learnable_per_tensor(
    self: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: Array = 1.0,
) -> Array:
    """fake_quantize_per_tensor with a zero point that is learned: rounded and clamped here."""
    point = _integral(zero_point.reshape(()), quant_min, quant_max)
    return _fake(self, scale.reshape(()), point, quant_min, quant_max)[0]


@lowering("aten::_fake_quantize_learnable_per_tensor_affine_backward")
def learnable_per_tensor_backward(
    grad: Array,
    self: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: Array = 1.0,
) -> tuple[Array, Array, Array]:
    """Gradients of the input, the scale and the zero point."""
    point = jnp.trunc(jnp.clip(zero_point.reshape(()) + 0.5, quant_min, quant_max))  # CPU's
    of_input, of_scale, of_point = _learnable_backward(
        grad, self, scale.reshape(()), point, quant_min, quant_max, jnp.asarray(grad_factor)
    )
    return (
        of_input,
        jnp.sum(of_scale).reshape(scale.shape),
        jnp.sum(of_point).reshape(zero_point.shape),
    )


@lowering("aten::_fake_quantize_learnable_per_channel_affine")
def learnable_per_channel(
    self: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: Array = 1.0,
) -> Array:
    """fake_quantize_per_channel with zero points that are learned."""
    point = _along(_integral(zero_point, quant_min, quant_max), axis, self.ndim)
    return _fake(self, _along(scale, axis, self.ndim), point, quant_min, quant_max)[0]


@lowering("aten::_fake_quantize_learnable_per_channel_affine_backward")
def learnable_per_channel_backward(
    grad: Array,
    self: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: Array = 1.0,
) -> tuple[Array, Array, Array]:
    """Gradients of the input, the scales and the zero points."""
    rank = self.ndim
    point = _along(_integral(zero_point, quant_min, quant_max), axis, rank)
    of_input, of_scale, of_point = _learnable_backward(
        grad,
        self,
        _along(scale, axis, rank),
        point,
        quant_min,
        quant_max,
        jnp.asarray(grad_factor),
    )
    over = tuple(d for d in range(rank) if d != axis % rank)
    return of_input, jnp.sum(of_scale, over), jnp.sum(of_point, over)


def _qparams(low: Array, high: Array, least: int, most: int, symmetric: bool) -> Pair:
    """Scale and zero point of a grid of [least, most] that spans [low, high] and holds 0.

    As torch's quant_utils.h chooses them: in float64, with scales of at least 6.1e-5.
    """
    both = (low < 0) & (high > 0) & symmetric
    half = (most - least) // 2
    reach = jnp.maximum(jnp.abs(low / -(half + 1)), jnp.abs(high / half))
    low = jnp.minimum(jnp.where(both, reach * -(half + 1), low), 0)
    high = jnp.maximum(jnp.where(both, reach * half, high), 0)
    low, high = low.astype(jnp.float64), high.astype(jnp.float64)
    scale = (high - low) / (most - least)
    narrow = scale.astype(jnp.float32)
    scale = jnp.where((narrow == 0) | jnp.isinf(1 / narrow), 0.1, scale)
    stretch = jnp.maximum(_LEAST_SCALE / scale, 1)
    scale, low, high = jnp.maximum(scale, _LEAST_SCALE), low * stretch, high * stretch
    from_low = abs(least) - jnp.abs(low / scale) < abs(most) - jnp.abs(high / scale)
    point = jnp.where(from_low, least - low / scale, most - high / scale)
    point = jnp.where(both, (least + most) / 2, point)
    return scale, jnp.clip(jnp.round(point), least, most)


def _extrema(x: Array, axis: int | None) -> Pair:
    """The least and the greatest value of the tensor, or of each index of an axis."""
    if axis is None:
        return jnp.min(x).reshape(1), jnp.max(x).reshape(1)
    over = tuple(d for d in range(x.ndim) if d != axis % x.ndim)
    return jnp.min(x, over), jnp.max(x, over)


@lowering(
    "aten::_fused_moving_avg_obs_fq_helper",
    writes={"running_min": 2, "running_max": 3, "scale": 4, "zero_point": 5},
)
def moving_average_fake_quantize(
    self: Array,
    observer_on: Array,
    fake_quant_on: Array,
    running_min: Array,
    running_max: Array,
    scale: Array,
    zero_point: Array,
    averaging_const: Array,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Array, ...]:
    """Fake quantization on a grid that follows a moving average of the extrema; flags are data."""
    axis = ch_axis if per_row_fake_quant else None
    observes = observer_on.reshape(-1)[0] != 0
    running = []
    for old, new in zip((running_min, running_max), _extrema(self, axis), strict=True):
        new = new.reshape(old.shape).astype(old.dtype)
        step = jnp.asarray(averaging_const).astype(old.dtype)
        moved = jnp.where(jnp.isinf(old), new, old + step * (new - old))
        running.append(jnp.where(observes, moved, old))
    low, high = running
    off = fake_quant_on.reshape(-1)[0] == 0
    fresh = _qparams(low, high, quant_min, quant_max, symmetric_quant)
    scale, zero_point = (
        jnp.where(off, old, new.reshape(old.shape).astype(old.dtype))
        for new, old in zip(fresh, (scale, zero_point), strict=True)
    )
    at = (scale, zero_point)
    beside = [v.reshape(()) if axis is None else _along(v, axis, self.ndim) for v in at]
    made, inside = _fake(self, beside[0], beside[1], quant_min, quant_max)
    return jnp.where(off, self, made), inside | off, low, high, scale, zero_point


@lowering("aten::_weight_int8pack_mm")
def weight_int8pack_mm(self: Array, mat2: Array, scales: Array) -> Array:
    """[M, K] @ int8[N, K]^T * scales[N] -> [M, N]."""
    wide = jnp.promote_types(self.dtype, jnp.float32)
    made = jnp.matmul(self, mat2.T.astype(self.dtype), preferred_element_type=wide)
    return made * scales.astype(wide)


@lowering("aten::_convert_weight_to_int4pack_for_cpu")
def convert_weight_to_int4pack_for_cpu(self: Array, innerKTiles: int) -> Array:
    """int32[N, K] of 0..15 -> uint8[N, K / 2], in row order here."""
    pairs = self.reshape(self.shape[0], -1, 2)
    return pairs[..., 1] | pairs[..., 0] << 4


@lowering("aten::_weight_int4pack_mm_for_cpu")
def weight_int4pack_mm_for_cpu(
    self: Array, mat2: Array, qGroupSize: int, qScaleAndZeros: Array
) -> Array:
    """[M, K] @ ((q - 8) * scale + zero)^T with q of 4 bits, uint8[N, K / 2], -> [M, N]."""
    levels = jnp.stack([mat2 >> 4, mat2 & 15], -1).reshape(mat2.shape[0], -1)
    return _grouped_product(self, levels, qGroupSize, qScaleAndZeros)


def _grouped_product(x: Array, levels: Array, group: int, scale_and_zeros: Array) -> Array:
    """x [M, K] times levels [N, K] with scale and zero of each group of K, [K / group, N, 2]."""
    rows = levels.shape[0]
    wide = jnp.promote_types(x.dtype, jnp.float32)
    scale, zero = jnp.moveaxis(scale_and_zeros.astype(wide)[..., None], (2, 1), (0, 1))
    weight = (levels.reshape(rows, -1, group).astype(wide) - 8) * scale + zero
    return jnp.matmul(x, weight.astype(x.dtype).reshape(rows, -1).T, preferred_element_type=wide)


@lowering("aten::_convert_weight_to_int4pack")
def convert_weight_to_int4pack(self: Array, innerKTiles: int) -> Array:
    """uint8[N, K / 2], even K in the high bits -> int32[N / 8, K / (16 inner), 32, inner / 2].

    The order is that of torch's CUDA kernel, so that packed checkpoints can be read: a word has
    eight levels of one row, of the columns c, c + 1 and these plus 8, 16 and 24.
    """
    levels = jnp.stack([self >> 4, self & 15], -1).astype(jnp.uint32)
    rows, columns = self.shape[0], self.shape[1] * 2
    tiles = levels.reshape(rows // 8, 8, columns // (16 * innerKTiles), innerKTiles // 2, 4, 4, 2)
    lanes = jnp.transpose(tiles, (0, 2, 1, 5, 3, 6, 4)).reshape(
        rows // 8, columns // (16 * innerKTiles), 32, innerKTiles // 2, 8
    )
    words = jnp.sum(lanes << (4 * jnp.arange(8, dtype=jnp.uint32)), -1, dtype=jnp.uint32)
    return jax.lax.bitcast_convert_type(words, jnp.int32)


@lowering("aten::_weight_int4pack_mm")
def weight_int4pack_mm(self: Array, mat2: Array, qGroupSize: int, qScaleAndZeros: Array) -> Array:
    """[M, K] @ ((q - 8) * scale + zero)^T with q packed by convert_weight_to_int4pack."""
    tiles, outer, _, inner = mat2.shape
    words = jax.lax.bitcast_convert_type(mat2, jnp.uint32)
    lanes = (words[..., None] >> (4 * jnp.arange(8, dtype=jnp.uint32))) & 15
    lanes = lanes.reshape(tiles, outer, 8, 4, inner, 2, 4)
    levels = jnp.transpose(lanes, (0, 2, 1, 4, 6, 3, 5)).reshape(tiles * 8, -1)
    return _grouped_product(self, levels, qGroupSize, qScaleAndZeros)
