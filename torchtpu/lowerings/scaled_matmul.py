"""Products of 8-bit floats with scales, and of groups of rows with a matrix for each group."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu.errors import LoweringError
from torchtpu.lowerings.registry import Array, lowering

DType = np.dtype[Any]


def _spread(scale: Array, shape: tuple[int, int]) -> Array:
    """A scale of blocks as a scale of elements: [M / b, K / c] -> [M, K]; [1], [M, 1] broadcast."""
    scale = scale.astype(jnp.float32)
    if scale.size == 1:
        return scale.reshape(1, 1)
    for dim, size in enumerate(shape):
        if scale.shape[dim] not in (1, size):
            block = -(-size // scale.shape[dim])
            block = 1 << (block - 1).bit_length()  # the last block may be cut
            scale = jnp.repeat(scale, block, axis=dim)
            scale = jnp.take(scale, jnp.arange(size), axis=dim)
    return scale


def _swizzled(scale: Array, rows: int, columns: int) -> Array:
    """A flat scale in tiles of 128 x 4, 32 rows interleaved, as [rows, columns].

    Source: cuBLAS 12.9 documentation, 1D block scaling factors layout.
    """
    tall, wide = -(-rows // 128), -(-columns // 4)
    tiles = scale.reshape(tall, wide, 32, 4, 4)
    return jnp.transpose(tiles, (0, 3, 2, 1, 4)).reshape(tall * 128, wide * 4)[:rows, :columns]


def _by_rows(scale: Array) -> bool:
    """Whether a scale is the same along the contraction, so that it can follow the product."""
    return int(scale.shape[1]) == 1


def _product(a: Array, b: Array, scale_a: Array, scale_b: Array) -> Array:
    """(a * scale_a) @ (b * scale_b) in float32; scales that allow it are applied to the result."""
    left, right = a, b
    after = jnp.ones((1, 1), jnp.float32)
    if _by_rows(scale_a):
        after = after * scale_a
    else:
        left = a.astype(jnp.float32) * scale_a
    if _by_rows(scale_b.T):
        after = after * scale_b
    else:
        right = b.astype(jnp.float32) * scale_b
    if not left.dtype.itemsize == right.dtype.itemsize == 1:  # else the matrix unit takes a mix
        left, right = left.astype(jnp.float32), right.astype(jnp.float32)
    return jax.lax.dot(left, right, preferred_element_type=jnp.float32) * after


def _blocks(scale: Array, rows: int, columns: int) -> Array:
    """Blocks of 1 x 32 (MXFP8) along the contraction, in tiles -> [rows, columns]."""
    if scale.ndim == 2 and scale.shape == (rows, -(-columns // 32)):
        plain = scale
    else:
        plain = _swizzled(scale, rows, -(-columns // 32))
    return jnp.repeat(plain.astype(jnp.float32), 32, axis=1)[:, :columns]


@lowering("aten::_scaled_mm")
def scaled_mm(
    self: Array,
    mat2: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: DType | None = None,
    use_fast_accum: bool = False,
) -> Array:
    """(self * scale_a) @ (mat2 * scale_b) + bias; scales by tensor, rows, blocks or MX blocks."""
    (rows, depth), columns = self.shape, mat2.shape[1]
    if scale_a.dtype == jnp.float8_e8m0fnu:
        left = _blocks(scale_a, rows, depth)
        right = _blocks(scale_b, columns, depth).T
    else:
        left, right = _spread(scale_a, (rows, depth)), _spread(scale_b, (depth, columns))
    made = _product(self, mat2, left, right)
    made = made if bias is None else made + bias.astype(jnp.float32)
    if scale_result is not None and (out_dtype is None or out_dtype.itemsize == 1):
        made = made * scale_result.astype(jnp.float32).reshape(())
    return made


@lowering("aten::_scaled_mm_v2")
def scaled_mm_v2(
    self: Array,
    mat2: Array,
    scale_a: tuple[Array, ...],
    recipe_a: tuple[int, ...],
    swizzle_a: tuple[int, ...],
    scale_b: tuple[Array, ...],
    recipe_b: tuple[int, ...],
    swizzle_b: tuple[int, ...],
    bias: Array | None,
    out_dtype: DType | None,
    contraction_dim: tuple[int, ...] = (),
    use_fast_accum: bool = False,
) -> Array:
    """_scaled_mm with the kind of each scale named (torch.nn.functional.ScalingType)."""
    (rows, depth), columns = self.shape, mat2.shape[1]
    left = _by_recipe(scale_a[0], recipe_a[0], swizzle_a, rows, depth)
    right = _by_recipe(scale_b[0], recipe_b[0], swizzle_b, columns, depth).T
    made = _product(self, mat2, left, right)
    return made if bias is None else made + bias.astype(jnp.float32)


def _by_recipe(scale: Array, recipe: int, swizzle: tuple[int, ...], rows: int, depth: int) -> Array:
    """A scale as [rows or 1, depth or 1]: rows of a, columns of b."""
    if recipe in (0, 1):
        return scale.astype(jnp.float32).reshape(-1, 1)
    if recipe == 3:
        blocks = -(-depth // 32)
        plain = _swizzled(scale, rows, blocks) if any(swizzle) else scale.reshape(rows, blocks)
        return jnp.repeat(plain.astype(jnp.float32), 32, axis=1)[:, :depth]
    if recipe == 4:
        return _spread(scale, (rows, depth))
    if recipe == 5:  # [K / 128 padded to 4, M / 128]
        return _spread(scale.T[:, : -(-depth // 128)], (rows, depth))
    raise LoweringError(
        f"[aten::_scaled_mm_v2] expected scales by tensor, row, 1x32, 1x128 or 128x128, "
        f"got recipe {recipe}"
    )


def _grouped(a: Array, b: Array, offs: Array | None) -> Array:
    """Products of groups in float32.

    [M, K] x [G, K, N] -> [M, N]: rows in groups; [G, M, K] x [K, N] -> [M, N]: columns in groups;
    [M, K] x [K, N] -> [G, M, N]: the contraction in groups; [G, M, K] x [G, K, N] -> [G, M, N].
    """
    if offs is None:
        return jnp.matmul(a, b, preferred_element_type=jnp.float32)
    if a.ndim == 2 and b.ndim == 2:
        return _by_parts_of_the_contraction(a, b, offs)
    if a.ndim == 2:
        return _by_rows_of(a, b, offs)
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)  # XLA:CPU has no bfloat16 dot like this
    swapped = _by_rows_of(jnp.swapaxes(b, 0, 1), jnp.swapaxes(a, 1, 2), offs)
    return jnp.swapaxes(swapped, 0, 1)


_CONTRACTION_IN_GROUPS = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (0,)), ((), ())),
    lhs_ragged_dimensions=(1,),
    rhs_group_dimensions=(),
)


def _by_parts_of_the_contraction(a: Array, b: Array, offs: Array) -> Array:
    """[M, K] x [K, N] -> [G, M, N] by lax.ragged_dot_general; what is past the last end is left."""
    return jax.lax.ragged_dot_general(
        a, b, _sizes(offs), _CONTRACTION_IN_GROUPS, preferred_element_type=jnp.float32
    )


def _sizes(offs: Array) -> Array:
    """Sizes of groups by their ends."""
    return jnp.diff(offs, prepend=jnp.zeros(1, offs.dtype))


def _by_rows_of(a: Array, b: Array, offs: Array) -> Array:
    """[M, K] x [G, K, N] -> [M, N] by lax.ragged_dot; rows past the last group are 0."""
    return jax.lax.ragged_dot(a, b, _sizes(offs), preferred_element_type=jnp.float32)


@lowering("aten::_grouped_mm")
def grouped_mm(
    self: Array,
    mat2: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: DType | None = None,
) -> Array:
    """Products of groups that end at `offs` (rows, columns or the contraction)."""
    return _grouped(self, mat2, offs)


@lowering("aten::_scaled_grouped_mm")
def scaled_grouped_mm(
    self: Array,
    mat2: Array,
    scale_a: Array,
    scale_b: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: DType | None = None,
    use_fast_accum: bool = False,
) -> Array:
    """_grouped_mm with a scale of each row of self and of each column of mat2."""
    if self.ndim == 2 and mat2.ndim == 2:  # a scale of each row in each group
        made = _grouped(self.astype(jnp.float32), mat2.astype(jnp.float32), offs)
        left = scale_a.reshape(made.shape[0], -1, 1)
        return made * left * scale_b.reshape(made.shape[0], 1, -1)
    left = self.astype(jnp.float32) * scale_a[..., None]
    right = mat2.astype(jnp.float32) * scale_b[..., None, :]
    return _grouped(left, right, offs)


@lowering("aten::_scaled_grouped_mm_v2")
def scaled_grouped_mm_v2(
    self: Array,
    mat2: Array,
    scale_a: tuple[Array, ...],
    recipe_a: tuple[int, ...],
    swizzle_a: tuple[int, ...],
    scale_b: tuple[Array, ...],
    recipe_b: tuple[int, ...],
    swizzle_b: tuple[int, ...],
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: DType | None = None,
    contraction_dim: tuple[int, ...] = (),
    use_fast_accum: bool = False,
) -> Array:
    """_scaled_grouped_mm with the kind of scale named: by rows."""
    if recipe_a != (1,) or recipe_b != (1,):
        raise LoweringError(
            f"[aten::_scaled_grouped_mm_v2] expected scales by row (1), got {recipe_a}, {recipe_b}"
        )
    return scaled_grouped_mm(self, mat2, scale_a[0], scale_b[0], offs)
