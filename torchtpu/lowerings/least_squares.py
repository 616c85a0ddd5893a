"""Least squares: the shortest X that minimizes |A X - B|, by QR or by singular values."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.registry import Array, lowering


def _adjoint(a: Array) -> Array:
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def _solve_upper(r: Array, b: Array, adjoint: bool = False) -> Array:
    batch = jnp.broadcast_shapes(r.shape[:-2], b.shape[:-2])
    r, b = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (r, b))
    return lax.linalg.triangular_solve(
        r, b, left_side=True, lower=False, transpose_a=adjoint, conjugate_a=adjoint
    )


def _by_qr(a: Array, b: Array) -> Array:
    """For matrices of full rank only (LAPACK's gels)."""
    if a.shape[-2] >= a.shape[-1]:
        q, r = jnp.linalg.qr(a)
        return _solve_upper(r, _adjoint(q) @ b)
    q, r = jnp.linalg.qr(_adjoint(a))
    return q @ _solve_upper(r, b, adjoint=True)


def _by_svd(a: Array, b: Array, rcond: Array) -> tuple[Array, Array, Array]:
    """The solution, the rank, and the singular values; those below rcond s_max count as 0."""
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    rcond = jnp.where(rcond < 0, float(np.finfo(s.dtype).eps), rcond)
    used = s > rcond * s[..., :1]
    inverse = jnp.where(used, 1 / jnp.where(used, s, 1), 0)
    x = _adjoint(vh) @ (inverse[..., None] * (_adjoint(u) @ b))
    return x, jnp.sum(used, -1), s


@lowering("aten::linalg_lstsq")
def linalg_lstsq(
    self: Array, b: Array, rcond: Any = None, driver: str | None = None
) -> tuple[Array, Array, Array, Array]:
    """Solution, sums of squared residuals, rank and singular values; what a driver lacks is empty.

    gelsy (the default), gelsd and gelss go by singular values, gels by QR.
    """
    driver = driver or "gelsy"
    vector = b.ndim == 1 or (b.ndim == self.ndim - 1 and b.shape == self.shape[:-1])
    columns = b[..., None] if vector else b
    rows, size = self.shape[-2:]
    real = self.real.dtype
    rank, values = jnp.zeros(self.shape[:-2], jnp.int64), jnp.zeros(0, real)
    if self.size == 0 or columns.size == 0:
        batch = jnp.broadcast_shapes(self.shape[:-2], columns.shape[:-2])
        x = jnp.zeros((*batch, size, columns.shape[-1]), self.dtype)
        values = jnp.zeros((*self.shape[:-2], min(rows, size)), real)
    elif driver == "gels":
        x = _by_qr(self, columns)
    else:
        default = float(np.finfo(real).eps) * max(rows, size)
        x, rank, values = _by_svd(self, columns, default if rcond is None else rcond)
    residuals = jnp.zeros(0, real)
    if rows > size and driver != "gelsy":
        residuals = jnp.sum(jnp.square(jnp.abs(columns - self @ x)), -2)
    return (
        x[..., 0] if vector else x,
        residuals,
        jnp.zeros(0, jnp.int64) if driver == "gels" else rank,
        values if driver in ("gelsd", "gelss") else jnp.zeros(0, real),
    )
