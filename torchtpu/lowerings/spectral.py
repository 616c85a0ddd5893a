"""Eigenvalues and singular values with their vectors."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering


@lowering("aten::_linalg_eigh")
def linalg_eigh(A: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    """Eigenvalues in ascending order and eigenvectors of a Hermitian matrix."""
    if A.size == 0:
        values = jnp.zeros(A.shape[:-1], A.real.dtype)
        return values, jnp.zeros(A.shape if compute_v else (0,), A.dtype)
    lower = UPLO.upper() == "L"
    triangle = jnp.tril(A) if lower else jnp.triu(A)
    vectors, values = lax.linalg.eigh(triangle, lower=lower, symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros((0,), A.dtype)


@lowering("aten::linalg_eig")
def linalg_eig(self: Array) -> tuple[Array, Array]:
    """Eigenvalues and right eigenvectors (XLA has them on the CPU only)."""
    values, vectors = jnp.linalg.eig(self)
    return values, vectors


@lowering("aten::_linalg_eigvals")
def linalg_eigvals(self: Array) -> Array:
    """Eigenvalues (XLA has them on the CPU only)."""
    return jnp.linalg.eigvals(self)


@lowering("aten::_linalg_svd")
def linalg_svd(
    A: Array, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> tuple[Array, Array, Array]:
    """A = U diag(S) Vh."""
    if not compute_uv:
        empty = jnp.zeros((0,), A.dtype)
        return empty, jnp.linalg.svd(A, compute_uv=False), empty
    if A.size == 0 or jnp.iscomplexobj(A):
        u, s, vh = jnp.linalg.svd(A, full_matrices=full_matrices)
        return u, s, vh
    u, s, vh = lax.platform_dependent(
        A,
        cpu=lambda a: _torchs_signs(a, full_matrices),
        default=lambda a: tuple(jnp.linalg.svd(a, full_matrices=full_matrices)),
    )
    return u, s, vh


def _torchs_signs(a: Array, full: bool) -> tuple[Array, Array, Array]:
    """The singular vectors with the signs of torch's CPU, which calls MKL.

    Of two opposite pairs of vectors LAPACK returns the one its way to the bidiagonal matrix leads
    to. XLA's goes by QR or LQ where the longer side is 11/6 of the shorter one; MKL goes by QR
    from 3/2 on, and never by LQ: a column of zeros beside L keeps XLA's from it (but for 2 rows).
    """
    rows, columns = a.shape[-2:]
    if 2 * rows >= 3 * columns - (columns % 2) and rows > columns:
        q, r = jnp.linalg.qr(a, mode="complete" if full else "reduced")
        u, s, vh = jnp.linalg.svd(r[..., :columns, :])
        return _times(q, u), s, vh
    if 6 * columns >= 11 * rows - 5 and columns > rows > 2:
        q, r = jnp.linalg.qr(jnp.swapaxes(a, -1, -2), mode="complete" if full else "reduced")
        lower = jnp.swapaxes(r[..., :rows, :], -1, -2)
        padded = jnp.pad(lower, [(0, 0)] * (a.ndim - 1) + [(0, 1)])
        u, s, vh = jnp.linalg.svd(padded, full_matrices=False)
        return u, s, jnp.swapaxes(_times(q, jnp.swapaxes(vh[..., :rows], -1, -2)), -1, -2)
    u, s, vh = jnp.linalg.svd(a, full_matrices=full)
    return u, s, vh


def _times(q: Array, factor: Array) -> Array:
    """Q with its first columns multiplied by a square matrix."""
    size = factor.shape[-1]
    return jnp.concatenate([q[..., :size] @ factor, q[..., size:]], -1)
