"""The derivative of a Dirichlet sample by its concentration, by the approximations that torch uses.

Implicit reparameterization: Jankowiak and Obermeyer 2018. Four regions, each with its own formula;
the table of the last one is that of torch's Distributions.h, so that results are CPU's.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma

from torchtpu.lowerings.registry import Array, lowering

# Two rational functions: [numerator or denominator, power of log x, of log (alpha / x), of b].
_TABLE = np.array(
    [
        [
            [
                [1.003668233, -0.01061107488, -0.0657888334, 0.01201642863],
                [0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033],
                [-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013],
            ],
            [
                [0.221950385, -0.3187676331, 0.01799915743, 0.01074823814],
                [-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057],
                [0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05],
            ],
            [
                [-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565],
                [0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181],
                [0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05],
            ],
        ],
        [
            [
                [1, -0.02924021934, -0.04438342661, 0.007285809825],
                [0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521],
                [-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149],
            ],
            [
                [0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273],
                [0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956],
                [-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05],
            ],
            [
                [0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05],
                [0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05],
                [-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06],
            ],
        ],
    ]
)


def _finite(x: Array) -> Array:
    return jnp.where(jnp.isnan(x), 0, x)


def _near_zero(x: Array, alpha: Array, beta: Array) -> Array:
    """A power series in x."""
    factor = digamma(alpha) - digamma(alpha + beta) - jnp.log(x)
    numerator = jnp.ones_like(x)
    series = numerator / alpha * (factor + 1 / alpha)
    for i in range(1, 11):
        numerator = numerator * (i - beta) * x / i
        series = series + numerator / (alpha + i) * (factor + 1 / (alpha + i))
    return _finite(x * (1 - x) ** -beta * series)


def _near_one(x: Array, alpha: Array, beta: Array) -> Array:
    """The derivative by the other concentration, as a power series in x near 0."""
    factor = digamma(alpha + beta) - digamma(beta)
    numerator, betas, slope = jnp.ones_like(x), jnp.ones_like(x), jnp.zeros_like(x)
    series = factor / alpha
    for i in range(1, 9):
        numerator = numerator * -x / i
        slope, betas = slope * (beta - i) + betas, betas * (beta - i)
        series = series + numerator / (alpha + i) * (slope + factor * betas)
    return _finite(-((1 - x) ** (1 - beta)) * series)


def _large(x: Array, alpha: Array, beta: Array) -> Array:
    """Both concentrations large: a saddle point, and a polynomial around its singularity."""
    total = alpha + beta
    mean = alpha / total
    deviation = jnp.sqrt(alpha * beta / (total + 1)) / total
    b2 = beta * beta
    inner = (453 + 1620 * beta * (1 - x) - 455 * x) * beta + 8 * alpha * (1 - x) * (135 * beta - 11)
    middle = 3 * (59 + 180 * beta - 90 * x) * b2 + alpha * inner
    outer = (43 + 20 * (16 + 27 * beta) * x) * b2 * beta + alpha * middle
    polynomial = 47 * x * b2 * b2 + alpha * outer
    top = (1 + 12 * alpha) * (1 + 12 * beta) / (total * total)
    bottom = 12960 * alpha**3 * b2 * (1 + 12 * total)
    near = top / (1 - x) * polynomial / bottom
    return jnp.where(jnp.abs(x - mean) <= 0.1 * deviation, near, _saddle(x, alpha, beta))


def _stirling(n: Array) -> Array:
    return 1 + 1 / (12 * n) + 1 / (288 * n * n)


def _saddle(x: Array, alpha: Array, beta: Array) -> Array:
    total = alpha + beta
    off = beta * x + alpha * (x - 1)
    numerator = 2 * alpha**2 * (x - 1) + alpha * beta * (x - 1) - x * beta**2
    first = numerator / (jnp.sqrt(2 * alpha / beta) * total**1.5 * off * off)
    half_log = 0.5 * jnp.log(alpha / (total * x))
    third = jnp.sqrt(8 * alpha * beta / total) / off
    low, high = alpha / (total * x), beta / (total * (1 - x))
    fourth = (beta * jnp.log(high) + alpha * jnp.log(low)) ** -1.5
    fourth = jnp.where(x < alpha / total, fourth, -fourth)
    scale = _stirling(alpha) * _stirling(beta) / _stirling(total)
    return scale * -x / jnp.sqrt(2 * alpha * beta / total) * (first + half_log * (third + fourth))


def _middle(x: Array, alpha: Array, beta: Array) -> Array:
    """An analytic approximation times a rational correction."""
    total = alpha + beta
    u = jnp.log(x)
    a = jnp.log(alpha) - u
    b = jnp.log(total) - a
    powers = [jnp.stack([v**n for n in range(count)], -1) for v, count in ((u, 3), (a, 3), (b, 4))]
    table = jnp.asarray(_TABLE, x.dtype)
    p, q = jnp.moveaxis(jnp.einsum("fijk,...i,...j,...k->...f", table, *powers), -1, 0)
    return p / q * x * (digamma(total) - digamma(alpha)) / beta


@lowering("aten::_dirichlet_grad")
def dirichlet_grad(x: Array, alpha: Array, total: Array) -> Array:
    """d x / d alpha of a sample x of Beta(alpha, total - alpha), over 1 - x."""
    dtype = x.dtype
    x, alpha, total = (v.astype(jnp.float64) for v in (x, alpha, total))
    beta = total - alpha
    boundary = total * x * (1 - x)
    result = _middle(x, alpha, beta)
    result = jnp.where((alpha > 6) & (beta > 6), _large(x, alpha, beta), result)
    high = (x >= 0.5) & (boundary < 0.75)
    result = jnp.where(high, -_near_one(1 - x, beta, alpha), result)
    low = (x <= 0.5) & (boundary < 2.5)
    return jnp.where(low, _near_zero(x, alpha, beta), result).astype(dtype)
