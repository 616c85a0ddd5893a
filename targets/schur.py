"""Eigenvalues and eigenvectors of general matrices, on platforms without LAPACK.

The QR algorithm with Wilkinson's shifts (Golub and Van Loan, Matrix Computations, 7.5) on whole
matrices, whose products and factorizations suit a TPU: no step goes along single rows. The
eigenvectors are those of the triangular factor, by substitution, turned back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_STEPS = 40  # QR steps per eigenvalue before it is given up, as LAPACK does after 30
_EXCEPTIONAL = 10  # every so many steps a shift that breaks cycles


class _State(NamedTuple):
    t: Any  # becomes upper triangular
    q: Any  # unitary: q t q^H is the matrix
    last: Any  # the last row that is not reduced yet
    steps: Any  # spent on it


def eig(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return eigenvalues (n) and right eigenvectors (n, n; unit columns) of a matrix (n, n).

    Both are complex. Where the algorithm does not converge, or a is not finite, they are NaN.
    """
    n = a.shape[0]
    t = a if jnp.iscomplexobj(a) else lax.complex(a, jnp.zeros_like(a))
    if n == 0:
        return t.reshape(0), t
    size = jnp.max(jnp.abs(a))
    scale = jnp.where(size > 0, size, 1)
    t = t / scale
    start = _State(t, jnp.eye(n, dtype=t.dtype), jnp.int32(n - 1), jnp.int32(0))
    end = lax.while_loop(lambda s: (s.last > 0) & (s.steps < _STEPS), _step, start)
    vectors = _vectors(jnp.triu(end.t), end.q)
    fine = (end.last <= 0) & jnp.isfinite(scale)
    values = jnp.diagonal(end.t) * scale
    return jnp.where(fine, values, jnp.nan), jnp.where(fine, vectors, jnp.nan)


def _step(s: _State) -> _State:
    """Reduce the last row by a QR step of the rows up to it, or go on to the row above."""
    index = jnp.arange(s.t.shape[0])
    before = index < s.last
    row = jnp.where(before, jnp.abs(s.t[s.last]), 0)
    here, above = jnp.abs(s.t[s.last, s.last]), jnp.abs(s.t[s.last - 1, s.last - 1])
    size = jnp.where(here + above > 0, here + above, jnp.linalg.norm(s.t))
    is_done = jnp.sum(row) <= float(np.finfo(row.dtype).eps) * size
    reduced = s.t.at[s.last].set(jnp.where(before, 0, s.t[s.last]))
    going_on = _State(reduced, s.q, s.last - 1, jnp.int32(0))
    found: _State = lax.cond(is_done, lambda: going_on, lambda: _shifted(s, index <= s.last, row))
    return found


def _shifted(s: _State, active: Any, row: Any) -> _State:
    shift = jnp.where(
        (s.steps + 1) % _EXCEPTIONAL == 0,
        (s.t[s.last, s.last] + jnp.max(row)).astype(s.t.dtype),
        _wilkinson(s.t, s.last),
    )
    eye = jnp.eye(s.t.shape[0], dtype=s.t.dtype)
    block = active[:, None] & active[None, :]
    turn: Any = jnp.linalg.qr(jnp.where(block, s.t - shift * eye, eye))[0]
    t = _product(_product(turn.conj().T, s.t), turn)
    return _State(t, _product(s.q, turn), s.last, s.steps + 1)


def _product(x: Any, y: Any) -> Any:
    return jnp.matmul(x, y, precision="highest")


def _wilkinson(t: Any, last: Any) -> Any:
    """The eigenvalue of the last two rows and columns that is next to the last element."""
    a, b = t[last - 1, last - 1], t[last - 1, last]
    c, d = t[last, last - 1], t[last, last]
    half = (a - d) / 2
    root = jnp.sqrt(half * half + b * c)
    below = jnp.where(jnp.abs(half + root) > jnp.abs(half - root), half + root, half - root)
    return jnp.where(below == 0, d, d - b * c / jnp.where(below == 0, 1, below))


def _vectors(t: Any, q: Any) -> Any:
    """Eigenvectors of q t q^H, t upper triangular: unit columns whose largest element is real."""
    n = t.shape[0]
    values, index = jnp.diagonal(t), jnp.arange(n)
    tiny = float(np.finfo(t.real.dtype).eps) * jnp.maximum(jnp.max(jnp.abs(t), initial=0), 1e-30)

    def fill(k: Any, y: Any) -> Any:
        row = n - 1 - k
        apart = t[row, row] - values
        apart = jnp.where(jnp.abs(apart) < tiny, tiny.astype(t.dtype), apart)
        beyond = jnp.where(index > row, t[row], 0)
        found = -_product(beyond, y) / apart
        found = jnp.where(index > row, found, y[row])
        smaller = 1 / jnp.maximum(jnp.abs(found), 1)  # vectors of equal values grow without bound
        return y.at[row].set(found) * smaller

    vectors = _product(q, lax.fori_loop(0, n, fill, jnp.eye(n, dtype=t.dtype)))
    size = jnp.abs(vectors)
    largest = jnp.take_along_axis(vectors, jnp.argmax(size, axis=0)[None], axis=0)
    turned = vectors * (jnp.conj(largest) / jnp.abs(largest))
    return turned / jnp.linalg.norm(turned, axis=0)
