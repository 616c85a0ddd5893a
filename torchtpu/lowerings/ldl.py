"""LDL factorization of symmetric and Hermitian matrices with Bunch-Kaufman pivoting, and its solve.

The stored form is LAPACK's for a lower triangle: D on the diagonal and below it where a block is
2 x 2, the columns of L below D, and pivots counted from 1, negative and twice for a 2 x 2 block.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering

_ALPHA = (1 + 17**0.5) / 8  # bounds the growth of elements (Bunch and Kaufman 1977, section 2)


class _State(NamedTuple):
    k: Array
    rest: Array  # what is left to factor, symmetric; rows and columns below k are not read
    ld: Array
    pivots: Array
    info: Array


def _size(a: Array) -> Array:
    """|re| + |im|, by which LAPACK compares."""
    return jnp.abs(a.real) + jnp.abs(a.imag) if jnp.iscomplexobj(a) else jnp.abs(a)


def _mirrored(a: Array, hermitian: bool) -> Array:
    """The matrix whose lower triangle is given."""
    below = jnp.tril(a, -1)
    diagonal = jnp.diagonal(a)
    if not hermitian:
        return below + below.T + jnp.diag(diagonal)
    return below + jnp.conj(below.T) + jnp.diag(diagonal.real.astype(a.dtype))


def _choose(rest: Array, k: Array) -> tuple[Array, Array, Array]:
    """The row to bring to the pivot, whether the block is 2 x 2, and whether nothing is left."""
    rows = jnp.arange(rest.shape[0])
    here = _size(rest[k, k])
    column = jnp.where(rows > k, _size(rest[:, k]), 0)
    other = jnp.argmax(column)
    largest = column[other]
    in_row = jnp.max(jnp.where((rows >= k) & (rows != other), _size(rest[other]), 0))
    keep = (here >= _ALPHA * largest) | (here >= _ALPHA * largest * (largest / in_row))
    single = keep | (_size(rest[other, other]) >= _ALPHA * in_row)
    nothing = (jnp.maximum(here, largest) == 0) | jnp.isnan(here)
    return jnp.where(keep | nothing, k, other), ~single & ~nothing, nothing


def _swap(a: Array, i: Array, j: Array) -> Array:
    """Exchange two rows."""
    return a.at[i].set(a[j]).at[j].set(a[i])


def _step(state: _State, hermitian: bool) -> _State:
    """Factor one block of D."""
    k, rest, ld, pivots, info = state
    rows = jnp.arange(rest.shape[0])
    row, double, nothing = _choose(rest, k)
    target = k + double
    rest = _swap(_swap(rest, target, row).T, target, row).T
    pair = jnp.stack([k, jnp.minimum(k + 1, rest.shape[0] - 1)])
    below = (rows > target)[:, None]
    columns = jnp.where(below, rest[:, pair], 0)  # [n, 2]
    single = jnp.eye(2, dtype=rest.dtype).at[0, 0].set(rest[k, k])
    block = jnp.where(double, rest[pair][:, pair], single)
    factor = jnp.where(nothing, columns, columns @ _inverse(block))
    factor = factor.at[:, 1].multiply(double)
    turned = jnp.conj(columns.T) if hermitian else columns.T
    rest = jnp.where(nothing, rest, rest - factor @ turned)
    second = factor[:, 1].at[pair[1]].set(block[1, 1])
    ld = ld.at[:, pair[1]].set(jnp.where(double, second, ld[:, pair[1]]))
    first = factor[:, 0].at[pair[1]].add(block[1, 0])
    ld = ld.at[:, k].set(first.at[k].set(block[0, 0]))
    number = jnp.where(double, -(row + 1), row + 1).astype(jnp.int32)
    pivots = pivots.at[target].set(number).at[k].set(number)
    info = jnp.where(nothing & (info == 0), k + 1, info).astype(jnp.int32)
    return _State(target + 1, rest, ld, pivots, info)


def _inverse(block: Array) -> Array:
    """The inverse of a 2 x 2 matrix."""
    (a, b), (c, d) = block
    return jnp.array([[d, -b], [-c, a]]) / (a * d - b * c)


def _factor(a: Array, hermitian: bool) -> tuple[Array, Array, Array]:
    n = a.shape[0]
    zero = jnp.zeros((), jnp.int32)
    rest = _mirrored(a, hermitian)
    start = _State(zero, rest, jnp.zeros_like(a), jnp.zeros(n, jnp.int32), zero)
    step = partial(_step, hermitian=hermitian)
    end = lax.while_loop(lambda state: state.k < n, step, start)
    return end.ld, end.pivots, end.info


def _is_first(pivots: Array) -> Array:
    """Whether a column is the first of a 2 x 2 block."""

    def step(before: Array, pivot: Array) -> tuple[Array, Array]:
        first = (pivot < 0) & ~before
        return first, first

    return lax.scan(step, jnp.zeros((), bool), pivots)[1]


def _solve_blocks(ld: Array, first: Array, b: Array, hermitian: bool) -> Array:
    """D^-1 b: each row with its neighbour of the same block, or with nobody."""
    diagonal = jnp.diagonal(ld)
    diagonal = diagonal.real.astype(ld.dtype) if hermitian else diagonal
    lower = jnp.where(first, jnp.append(jnp.diagonal(ld, -1), 0), 0)
    upper = jnp.conj(lower) if hermitian else lower
    second = jnp.roll(first, 1)
    partner = jnp.where(first, jnp.roll(diagonal, -1), jnp.where(second, jnp.roll(diagonal, 1), 1))
    across = jnp.where(first, upper, jnp.where(second, jnp.roll(lower, 1), 0))
    product = jnp.where(first, lower * upper, jnp.roll(lower * upper, 1) * second)
    neighbour = jnp.where(first[:, None], jnp.roll(b, -1, 0), jnp.roll(b, 1, 0))
    return (partner[:, None] * b - across[:, None] * neighbour) / (diagonal * partner - product)[
        :, None
    ]


def _solve(ld: Array, pivots: Array, b: Array, hermitian: bool) -> Array:
    n = ld.shape[0]
    first = _is_first(pivots)
    below = jnp.tril(ld, -1)
    below = below.at[jnp.arange(1, n), jnp.arange(n - 1)].multiply(~first[:-1])
    row = jnp.abs(pivots) - 1
    target = jnp.arange(n) + first
    moves = first | (pivots > 0)  # the second column of a block moves nothing
    target, row = (jnp.where(moves, v, 0) for v in (target, row))

    def forward(k: Array, x: Array) -> Array:
        x = _swap(x, target[k], row[k])
        return x - below[:, k, None] * x[k]

    def backward(i: Array, x: Array) -> Array:
        k = n - 1 - i
        factor = jnp.conj(below[:, k]) if hermitian else below[:, k]
        x = x.at[k].add(-(factor @ x))
        return _swap(x, target[k], row[k])

    x = _solve_blocks(ld, first, lax.fori_loop(0, n, forward, b), hermitian)
    return lax.fori_loop(0, n, backward, x)


@lowering("aten::linalg_ldl_factor_ex")
def linalg_ldl_factor_ex(
    self: Array, hermitian: bool = False, check_errors: bool = False
) -> tuple[Array, Array, Array]:
    """LD in one matrix, pivots, and which element of D is the first exact zero."""
    batch, n = self.shape[:-2], self.shape[-1]
    if self.size == 0:
        return self, jnp.zeros((*batch, n), jnp.int32), jnp.zeros(batch, jnp.int32)
    ld, pivots, info = jax.vmap(partial(_factor, hermitian=hermitian))(self.reshape(-1, n, n))
    return ld.reshape(self.shape), pivots.reshape(*batch, n), info.reshape(batch)


@lowering("aten::linalg_ldl_solve")
def linalg_ldl_solve(LD: Array, pivots: Array, B: Array, hermitian: bool = False) -> Array:
    """X of A X = B for a factored A."""
    batch = jnp.broadcast_shapes(LD.shape[:-2], B.shape[:-2])
    shape = (*batch, *B.shape[-2:])
    if B.size == 0 or LD.size == 0:
        return jnp.zeros(shape, B.dtype)
    flat = (
        jnp.broadcast_to(a, (*batch, *a.shape[a.ndim - rank :])).reshape(
            -1, *a.shape[a.ndim - rank :]
        )
        for a, rank in ((LD, 2), (pivots, 1), (B, 2))
    )
    return jax.vmap(partial(_solve, hermitian=hermitian))(*flat).reshape(shape)
