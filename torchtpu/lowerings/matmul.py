"""Matrix products: dot_general on the MXU, with bias and scale fused behind it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torchtpu.lowerings.registry import Array, lowering


@lowering("aten::mm")
def mm(self: Array, mat2: Array) -> Array:
    """[M, K] @ [K, N] -> [M, N]."""
    return jnp.matmul(self, mat2)


@lowering("aten::bmm")
def bmm(self: Array, mat2: Array) -> Array:
    """[B, M, K] @ [B, K, N] -> [B, M, N]."""
    return jnp.matmul(self, mat2)


@lowering("aten::addmm")
def addmm(
    self: Array, mat1: Array, mat2: Array, beta: Array | float = 1, alpha: Array | float = 1
) -> Array:
    """beta * self + alpha * (mat1 @ mat2)."""
    return scaled(jnp.matmul(mat1, mat2), alpha) + scaled(self, beta)


def scaled(value: Array, factor: Array | float) -> Array:
    """factor * value, in value's dtype; nothing where the factor is the constant 1."""
    if not isinstance(factor, jax.Array) and factor == 1:
        return value
    if not isinstance(factor, jax.Array) and factor == 0:
        return jnp.zeros_like(value)
    return value * jnp.asarray(factor).astype(value.dtype)
