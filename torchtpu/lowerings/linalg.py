"""Cholesky and LU factors of the last two dims, and the solves and determinants they give."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering, rounded

Dims = tuple[int, ...]


def _transposed(a: Array, adjoint: bool = True) -> Array:
    a = jnp.swapaxes(a, -1, -2)
    return jnp.conj(a) if adjoint else a


# --- Cholesky


def _lower(a: Array, upper: bool) -> Array:
    """The triangle that torch reads, as a lower one."""
    return _transposed(jnp.triu(a)) if upper else jnp.tril(a)


def _factor(a: Array, upper: bool) -> Array:
    """L of a = L L^H, or its adjoint; NaN where there is none."""
    factor = lax.linalg.cholesky(_lower(a, upper), symmetrize_input=False)
    return _transposed(factor) if upper else factor


def _first_minor(a: Array) -> Array:
    """The order of the first leading minor that is not positive, 0 for none."""

    def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, found = state
        pivot = rest[k, k].real
        found = jnp.where((found == 0) & ~(pivot > 0), k + 1, found).astype(jnp.int32)
        column = jnp.where(jnp.arange(a.shape[0]) > k, rest[:, k], 0)
        return rest - jnp.outer(column, jnp.conj(column)) / pivot, found

    return lax.fori_loop(0, a.shape[0], step, (a, jnp.zeros((), jnp.int32)))[1]


def _minors(lower: Array) -> Array:
    flat = lower.reshape(-1, *lower.shape[-2:])
    return jax.vmap(_first_minor)(flat).reshape(lower.shape[:-2])


@lowering("aten::linalg_cholesky_ex")
def linalg_cholesky_ex(
    self: Array, upper: bool = False, check_errors: bool = False
) -> tuple[Array, Array]:
    """The Cholesky factor, and where there is none the leading minor to blame."""
    factor = _factor(self, upper)
    if self.size == 0:
        return factor, jnp.zeros(self.shape[:-2], jnp.int32)
    failed = ~jnp.all(jnp.isfinite(factor))
    info = lax.cond(
        failed,
        lambda: _minors(_lower(self, upper)),
        lambda: jnp.zeros(self.shape[:-2], jnp.int32),
    )
    return factor, info


@lowering("aten::cholesky")
def cholesky(self: Array, upper: bool = False) -> Array:
    """The Cholesky factor; NaN where there is none."""
    return _factor(self, upper)


def _cholesky_solve(factor: Array, b: Array, upper: bool) -> Array:
    lower = _transposed(factor) if upper else factor
    half = _triangular(lower, b, upper=False)
    return lax.linalg.triangular_solve(
        lower, half, left_side=True, lower=True, transpose_a=True, conjugate_a=True
    )


@lowering("aten::_cholesky_solve_helper")
def cholesky_solve_helper(self: Array, A: Array, upper: bool) -> Array:
    """Solves with the Cholesky factor A."""
    return _cholesky_solve(A, self, upper)


@lowering("aten::cholesky_inverse")
def cholesky_inverse(self: Array, upper: bool = False) -> Array:
    """The inverse from a Cholesky factor."""
    identity = jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape)
    factor = jnp.triu(self) if upper else jnp.tril(self)
    return _cholesky_solve(factor, identity, upper)


# --- LU and what follows from it


def _lu(a: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    """LU, pivots counted from 1, and the row permutation."""
    rank = min(a.shape[-2:])
    rows = jnp.broadcast_to(jnp.arange(a.shape[-2]), a.shape[:-1])
    if a.size == 0:
        return a, jnp.zeros((*a.shape[:-2], rank), jnp.int32), rows
    if not pivot:
        return _without_pivots(a), rows[..., :rank].astype(jnp.int32) + 1, rows
    lu, pivots, permutation = lax.linalg.lu(a)
    return lu, pivots + 1, permutation


def _without_pivots(a: Array) -> Array:
    """LU in one matrix by elimination in the given order."""
    rows, columns = (jnp.arange(n) for n in a.shape[-2:])

    def step(k: Array, lu: Array) -> Array:
        factor = jnp.where(rows > k, lu[..., k] / lu[..., k, k][..., None], 0)
        update = factor[..., None] * jnp.where(columns > k, lu[..., k, :], 0)[..., None, :]
        return (lu - update).at[..., k].set(jnp.where(rows > k, factor, lu[..., k]))

    return lax.fori_loop(0, min(a.shape[-2:]), step, a)


def _singular(lu: Array) -> Array:
    """info: which pivot is the first exact zero, counted from 1; 0 for none."""
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    if zero.shape[-1] == 0:
        return jnp.zeros(zero.shape[:-1], jnp.int32)
    return jnp.where(jnp.any(zero, -1), jnp.argmax(zero, -1) + 1, 0).astype(jnp.int32)


def _permutation(pivots: Array, rows: int) -> Array:
    """The row order that a sequence of swaps gives."""
    if pivots.shape[-1] == 0:
        return jnp.broadcast_to(jnp.arange(rows), (*pivots.shape[:-1], rows))
    return lax.linalg.lu_pivots_to_permutation(pivots.astype(jnp.int32) - 1, rows)


def _triangles(lu: Array) -> tuple[Array, Array]:
    rank = min(lu.shape[-2:])
    lower = jnp.tril(lu[..., :, :rank], -1) + jnp.eye(lu.shape[-2], rank, dtype=lu.dtype)
    return lower, jnp.triu(lu[..., :rank, :])


def _permutation_matrix(permutation: Array, dtype: jnp.dtype) -> Array:
    """P with P[permutation[i], i] = 1, so that A = P L U."""
    return jax.nn.one_hot(permutation, permutation.shape[-1], dtype=dtype, axis=-2)


@lowering("aten::linalg_lu_factor_ex")
def linalg_lu_factor_ex(
    A: Array, pivot: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array]:
    """LU in one matrix, pivots, and where it is singular."""
    lu, pivots, _ = _lu(A, pivot)
    return lu, pivots, _singular(lu)


@lowering("aten::linalg_lu")
def linalg_lu(A: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    """A = P L U; without pivots P is empty."""
    lu, _, permutation = _lu(A, pivot)
    matrix = _permutation_matrix(permutation, A.dtype) if pivot else jnp.zeros((0,), A.dtype)
    return matrix, *_triangles(lu)


@lowering("aten::lu_unpack")
def lu_unpack(
    LU_data: Array, LU_pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, Array, Array]:
    """P, L and U from the factored form; what is not asked for is empty."""
    empty = jnp.zeros((0,), LU_data.dtype)
    matrix = empty
    if unpack_pivots:
        permutation = _permutation(LU_pivots, LU_data.shape[-2])
        matrix = _permutation_matrix(permutation, LU_data.dtype)
    lower, upper = _triangles(LU_data) if unpack_data else (empty, empty)
    return matrix, lower, upper


def _triangular(a: Array, b: Array, *, upper: bool, left: bool = True, unit: bool = False) -> Array:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = jnp.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if b.size == 0:
        return b
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unit)


def _lu_solve(lu: Array, permutation: Array, b: Array, adjoint: bool = False) -> Array:
    if not adjoint:
        b = jnp.take_along_axis(b, permutation[..., None], axis=-2)
        return _triangular(lu, _triangular(lu, b, upper=False, unit=True), upper=True)
    turned = _transposed(lu)
    x = _triangular(turned, b, upper=False)
    x = _triangular(turned, x, upper=True, unit=True)
    return jnp.take_along_axis(x, jnp.argsort(permutation, -1)[..., None], axis=-2)


def _solve(lu: Array, permutation: Array, b: Array, left: bool, adjoint: bool = False) -> Array:
    batch = jnp.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    lu, b = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (lu, b))
    permutation = jnp.broadcast_to(permutation, (*batch, permutation.shape[-1]))
    if b.size == 0:
        return b
    if left:
        return _lu_solve(lu, permutation, b, adjoint)
    return _transposed(_lu_solve(lu, permutation, _transposed(b), not adjoint))


@lowering("aten::linalg_lu_solve")
def linalg_lu_solve(
    LU: Array, pivots: Array, B: Array, left: bool = True, adjoint: bool = False
) -> Array:
    """Solves with a factored matrix."""
    return _solve(LU, _permutation(pivots, LU.shape[-1]), B, left, adjoint)


@lowering("aten::_linalg_solve_ex")
def linalg_solve_ex(
    A: Array, B: Array, left: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array, Array]:
    """X of A X = B (X A = B), with the factors; B may be a vector."""
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    lu, pivots, permutation = _lu(A)
    result = _solve(lu, permutation, B[..., None] if vector else B, left or vector)
    return result[..., 0] if vector else result, lu, pivots, _singular(lu)


@lowering("aten::linalg_inv_ex")
def linalg_inv_ex(A: Array, check_errors: bool = False) -> tuple[Array, Array]:
    """The inverse, and where there is none."""
    lu, _, permutation = _lu(A)
    identity = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    return _solve(lu, permutation, identity, True), _singular(lu)


def _parity(pivots: Array) -> Array:
    """-1 for an odd number of swaps, else 1."""
    swaps = jnp.sum(pivots != jnp.arange(1, pivots.shape[-1] + 1), -1)
    return 1 - 2 * (swaps % 2)


@lowering("aten::_linalg_det")
def linalg_det(A: Array) -> tuple[Array, Array, Array]:
    """The determinant, with the factors."""
    lu, pivots, _ = _lu(A)
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    return jnp.prod(diagonal, -1) * _parity(pivots).astype(A.dtype), lu, pivots


@lowering("aten::_linalg_slogdet")
def linalg_slogdet(A: Array) -> tuple[Array, Array, Array, Array]:
    """Sign and log |determinant|, with the factors."""
    lu, pivots, _ = _lu(A)
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    sign = jnp.prod(jnp.sign(diagonal), -1) * _parity(pivots).astype(A.dtype)
    return sign, jnp.sum(jnp.log(jnp.abs(diagonal)), -1), lu, pivots


# --- triangular systems


@lowering("aten::triangular_solve")
def triangular_solve(
    self: Array, A: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    """X of A X = self for a triangular A, and A."""
    matrix = _transposed(A, adjoint=False) if transpose else A
    result = _triangular(matrix, self, upper=upper != transpose, unit=unitriangular)
    return result, jnp.broadcast_to(A, (*result.shape[:-2], *A.shape[-2:]))


@lowering("aten::linalg_solve_triangular")
def linalg_solve_triangular(
    self: Array, B: Array, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    """X of self X = B (X self = B) for a triangular matrix."""
    return _triangular(self, B, upper=upper, left=left, unit=unitriangular)


# --- products


@lowering("aten::linalg_cross", compute="output", half=True)
def linalg_cross(self: Array, other: Array, dim: int = -1, half: Any = None) -> Array:
    """The cross product of vectors of three elements along dim."""
    self, other = jnp.broadcast_arrays(self, other)
    first, second = (jnp.roll(self, -n, dim) for n in (1, 2))
    left, right = first * jnp.roll(other, -2, dim), second * jnp.roll(other, -1, dim)
    return rounded(left, half) - rounded(right, half)
