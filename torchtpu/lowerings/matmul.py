"""Matrix products: dot_general on the MXU, with bias and scale fused behind it.

bfloat16 and float16 accumulate in float32 and are rounded once, after bias and scale.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu.lowerings.registry import Array, lowering, rounded

DType = np.dtype[Any]
_SCALES = {"beta": (0, 1), "alpha": (1,)}  # beta = 0 ignores self, NaN included


def product(left: Array, right: Array) -> Array:
    """left @ right; half dtypes give a float32 result, bool is "any of and"."""
    if left.dtype == bool:
        return jnp.matmul(left.astype(jnp.int32), right.astype(jnp.int32)) != 0
    half = left.dtype in (jnp.bfloat16, jnp.float16)
    return jnp.matmul(left, right, preferred_element_type=jnp.float32 if half else None)


def scaled(value: Array, factor: Array | float) -> Array:
    """factor * value, in value's dtype; nothing where the factor is the constant 1."""
    if not isinstance(factor, jax.Array) and factor == 1:
        return value
    if not isinstance(factor, jax.Array) and factor == 0:
        return jnp.zeros_like(value)
    return value * jnp.asarray(factor).astype(value.dtype)


def biased(bias: Array, value: Array, beta: Array | float, alpha: Array | float) -> Array:
    """beta * bias + alpha * value, in value's dtype and shape."""
    total = scaled(value, alpha)
    if not isinstance(beta, jax.Array) and beta == 0:
        return total
    return scaled(bias.astype(value.dtype), beta) + total


@lowering("aten::mm", "aten::bmm")
def mm(self: Array, mat2: Array) -> Array:
    """[..., M, K] @ [..., K, N] -> [..., M, N]."""
    return product(self, mat2)


@lowering("aten::mm.dtype", "aten::bmm.dtype")
def mm_dtype(self: Array, mat2: Array, out_dtype: DType) -> Array:
    """[..., M, K] @ [..., K, N] -> [..., M, N], in another dtype than the operands'."""
    return jnp.matmul(self, mat2, preferred_element_type=out_dtype)


@lowering("aten::_int_mm")
def int_mm(self: Array, mat2: Array) -> Array:
    """int8[M, K] @ int8[K, N] -> int32[M, N]."""
    return jnp.matmul(self, mat2, preferred_element_type=jnp.int32)


@lowering("aten::mv")
def mv(self: Array, vec: Array) -> Array:
    """[M, K] @ [K] -> [M]."""
    return product(self, vec)


@lowering("aten::dot")
def dot(self: Array, tensor: Array) -> Array:
    """[K] @ [K] -> []."""
    return product(self, tensor)


@lowering("aten::vdot")
def vdot(self: Array, other: Array) -> Array:
    """conj(self) . other."""
    return product(jnp.conj(self), other)


@lowering("aten::addmm", constants=_SCALES)
def addmm(
    self: Array, mat1: Array, mat2: Array, beta: Array | float = 1, alpha: Array | float = 1
) -> Array:
    """beta * self + alpha * (mat1 @ mat2)."""
    return biased(self, product(mat1, mat2), beta, alpha)


@lowering("aten::addmm.dtype", constants=_SCALES)
def addmm_dtype(
    self: Array,
    mat1: Array,
    mat2: Array,
    out_dtype: DType,
    beta: Array | float = 1,
    alpha: Array | float = 1,
) -> Array:
    """addmm in another dtype than the operands'."""
    return biased(self, mm_dtype(mat1, mat2, out_dtype), beta, alpha)


@lowering("aten::baddbmm.dtype", constants=_SCALES)
def baddbmm_dtype(
    self: Array,
    batch1: Array,
    batch2: Array,
    out_dtype: DType,
    beta: Array | float = 1,
    alpha: Array | float = 1,
) -> Array:
    """baddbmm in another dtype than the operands'."""
    return biased(self, mm_dtype(batch1, batch2, out_dtype), beta, alpha)


@lowering("aten::_addmm_activation", constants=_SCALES)
def addmm_activation(
    self: Array,
    mat1: Array,
    mat2: Array,
    beta: Array | float = 1,
    alpha: Array | float = 1,
    use_gelu: bool = False,
) -> Array:
    """relu(addmm), or gelu(addmm)."""
    value = biased(self, product(mat1, mat2), beta, alpha)
    return jax.nn.gelu(value, approximate=False) if use_gelu else jax.nn.relu(value)


@lowering("aten::baddbmm", constants=_SCALES)
def baddbmm(
    self: Array, batch1: Array, batch2: Array, beta: Array | float = 1, alpha: Array | float = 1
) -> Array:
    """beta * self + alpha * (batch1 @ batch2)."""
    return biased(self, product(batch1, batch2), beta, alpha)


@lowering("aten::addbmm", constants=_SCALES)
def addbmm(
    self: Array, batch1: Array, batch2: Array, beta: Array | float = 1, alpha: Array | float = 1
) -> Array:
    """beta * self + alpha * sum over the batch of (batch1 @ batch2), as one contraction."""
    left = jnp.moveaxis(batch1, 0, 1).reshape(batch1.shape[1], -1)  # [B, M, K] -> [M, B * K]
    return biased(self, product(left, batch2.reshape(-1, batch2.shape[2])), beta, alpha)


@lowering("aten::addmv", constants=_SCALES)
def addmv(
    self: Array, mat: Array, vec: Array, beta: Array | float = 1, alpha: Array | float = 1
) -> Array:
    """beta * self + alpha * (mat @ vec)."""
    return biased(self, product(mat, vec), beta, alpha)


@lowering("aten::addr", constants=_SCALES, compute="output", half=True)
def addr(
    self: Array,
    vec1: Array,
    vec2: Array,
    beta: Array | float = 1,
    alpha: Array | float = 1,
    half: Any = None,
) -> Array:
    """beta * self + alpha * outer(vec1, vec2); torch rounds halves at each step."""
    if self.dtype == bool:
        outer = vec1[:, None] & vec2[None, :] & jnp.asarray(alpha, bool)
        return outer | (self & jnp.asarray(beta, bool))
    alpha, beta = (rounded(a, half) if isinstance(a, jax.Array) else a for a in (alpha, beta))
    outer = rounded(rounded(scaled(vec1[:, None], alpha), half) * vec2, half)
    if not isinstance(beta, jax.Array) and beta == 0:
        return outer
    return rounded(scaled(self, beta), half) + outer


@lowering("aten::linear_backward")
def linear_backward(
    self: Array, grad_output: Array, weight: Array, output_mask: tuple[bool, bool, bool]
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of input [..., K], weight [N, K] and bias [N] from grad_output [..., N]."""
    rows = grad_output.reshape(-1, grad_output.shape[-1])
    return (
        product(grad_output, weight) if output_mask[0] else None,
        product(rows.T, self.reshape(-1, self.shape[-1])) if output_mask[1] else None,
        jnp.sum(rows, axis=0, dtype=jnp.float32).astype(rows.dtype) if output_mask[2] else None,
    )
