"""The matrix exponential by scaling, a Taylor polynomial of degree 18, and squaring.

Bader, Blanes and Casas, Computing the Matrix Exponential with an Optimized Taylor Polynomial
Approximation, Mathematics 2019, 7, 1174: as torch's CPU does, since rounding errors of one scheme
are not those of another.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.reductions import widened
from torchtpu.lowerings.registry import Array, lowering

# Coefficients of I, A, A^2, A^3 and A^6 in B1 to B5.
_DEGREE_18 = np.array(
    [
        [0, -0.10036558103014462, -0.00802924648241157, -0.00089213849804573, 0],
        [0, 0.3978497494996451, 1.3678377846041172, 0.49828962252538267, -0.0006378981945947233],
        [
            -10.967639605296206,
            1.680158138789062,
            0.05717798464788655,
            -0.0069821012248805206,
            3.349750170860705e-05,
        ],
        [
            -0.09043168323908106,
            -0.06764045190713819,
            0.06759613017704597,
            0.029555257042931552,
            -1.391802575160607e-05,
        ],
        [0, 0, -0.09233646193671186, -0.016936493900208172, -1.400867981820361e-05],
    ]
)
# The 1-norms up to which the polynomial is exact to rounding.
_LARGEST_NORM = {np.dtype(np.float32): 3.010066362817634, np.dtype(np.float64): 1.090863719290036}


@lowering("aten::_compute_linear_combination")
def compute_linear_combination(input: Array, coefficients: Array) -> Array:
    """Sums over the first dim of input, weighted by the rows of coefficients."""
    if not coefficients.size or not input.size:
        return jnp.zeros((coefficients.shape[0], *input.shape[1:]), input.dtype)
    return jnp.tensordot(coefficients.astype(input.dtype), input, 1)


def _polynomial(a: Array) -> Array:
    """exp(a) for matrices of small norm."""
    a2 = a @ a
    a3 = a @ a2
    a6 = a3 @ a3
    powers = [jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape), a, a2, a3, a6]
    b1, b2, b3, b4, b5 = (
        sum(powers[j] * c.astype(a.real.dtype) for j, c in enumerate(row) if c)
        for row in _DEGREE_18
    )
    a9 = b4 + b1 @ b5
    return b2 + (b3 + a9) @ a9


@lowering("aten::linalg_matrix_exp")
def linalg_matrix_exp(self: Array) -> Array:
    """The matrix exponential."""
    self = widened(self)
    if self.size == 0 or self.shape[-1] == 1:
        return jnp.exp(self)
    norm = jnp.max(jnp.sum(jnp.abs(self), -2), -1)
    ratio = norm / _LARGEST_NORM[norm.dtype]
    squarings = jnp.where(norm > 0, jnp.maximum(jnp.ceil(jnp.log2(ratio)), 0), 0)
    squarings = jnp.where(jnp.isfinite(squarings), squarings, 0).astype(jnp.int32)[..., None, None]
    scaled = self * jnp.exp2(-squarings.astype(norm.dtype))

    def square(i: Array, x: Array) -> Array:
        return jnp.where(i < squarings, x @ x, x)

    return lax.fori_loop(0, jnp.max(squarings), square, _polynomial(scaled))
