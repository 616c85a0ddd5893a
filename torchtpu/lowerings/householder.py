"""QR factorizations and products of Householder reflections, in LAPACK's compact form."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering


@lowering("aten::linalg_qr")
def linalg_qr(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    """A = Q R."""
    if mode == "r":
        return jnp.zeros((0,), A.dtype), jnp.linalg.qr(A, mode="r")
    q, r = jnp.linalg.qr(A, mode=mode)
    return q, r


@lowering("aten::geqrf")
def geqrf(self: Array) -> tuple[Array, Array]:
    """R on and above the diagonal, the reflections below it, and their factors."""
    if self.size == 0:
        return self, jnp.zeros((*self.shape[:-2], min(self.shape[-2:])), self.dtype)
    turned, tau = jnp.linalg.qr(self, mode="raw")
    return jnp.swapaxes(turned, -1, -2), tau


@lowering("aten::linalg_householder_product")
def linalg_householder_product(input: Array, tau: Array) -> Array:
    """The first columns of a product of Householder reflections."""
    if input.size == 0 or tau.shape[-1] == 0:
        identity = jnp.eye(input.shape[-2], input.shape[-1], dtype=input.dtype)
        return jnp.broadcast_to(identity, input.shape)
    return lax.linalg.householder_product(input, tau)


@lowering("aten::ormqr")
def ormqr(
    self: Array, input2: Array, input3: Array, left: bool = True, transpose: bool = False
) -> Array:
    """input3 times the product of all reflections, or its adjoint, from the left or the right."""
    if input3.size == 0 or input2.shape[-1] == 0:
        return input3
    reflections = self[..., : input2.shape[-1]]
    return lax.linalg.ormqr(reflections, input2, input3, left=left, transpose=transpose)
