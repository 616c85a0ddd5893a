"""Bessel functions of order 0 and 1 and the Airy function: series near 0, asymptotics far out.

The series cancel, so both are summed in float64. Formulas: DLMF 10.2, 10.8, 10.17, 10.31, 10.40
(Bessel) and 9.4, 9.7 (Airy); the bounds between the two keep the error of either below 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from torchtpu.lowerings.registry import Array, lowering

_TERMS = 45
_FAR = 12.0
_FAR_MODIFIED = 9.0
_FAR_AIRY = 6.0


def _sum(coefficients: Sequence[float], x: Array) -> Array:
    """Sum of c[k] x^k."""
    return jnp.polyval(jnp.asarray(coefficients[::-1], jnp.float64), x, unroll=1)


def _series(order: int, sign: int, weight: Callable[[int], float]) -> list[float]:
    """weight(k) sign^k / (k! (k + order)!)."""
    return [
        weight(k) * sign**k / (math.factorial(k) * math.factorial(k + order)) for k in range(_TERMS)
    ]


def _harmonic(k: int) -> float:
    return sum(1 / j for j in range(1, k + 1))


def _digammas(k: int) -> float:
    """psi(k + 1) + psi(k + 2)."""
    return _harmonic(k) + _harmonic(k + 1) - 2 * np.euler_gamma


def _hankel(order: int, terms: int) -> list[float]:
    """The coefficients a_k of Hankel's expansion, DLMF 10.17.1."""
    found = [1.0]
    for k in range(1, terms):
        found.append(found[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return found


def _first_kind(x: Array, order: int) -> Array:
    """J near 0."""
    return (x / 2) ** order * _sum(_series(order, -1, lambda _: 1), x * x / 4)


def _second_kind(x: Array, order: int) -> Array:
    """Y near 0."""
    log = jnp.log(x / 2) + (np.euler_gamma if order == 0 else 0)
    t = x * x / 4
    if order == 0:
        return 2 / np.pi * (log * _first_kind(x, 0) - _sum(_series(0, -1, _harmonic), t))
    rest = x / 2 * _sum(_series(1, -1, _digammas), t)
    return (2 * log * _first_kind(x, 1) - 2 / x - rest) / np.pi


def _far(x: Array, order: int, *, second: bool) -> Array:
    """J or Y far from 0."""
    a = _hankel(order, 26)
    signs = [(-1) ** k for k in range(13)]
    even = _sum([s * c for s, c in zip(signs, a[::2], strict=True)], 1 / (x * x))
    odd = _sum([s * c for s, c in zip(signs, a[1::2], strict=True)], 1 / (x * x)) / x
    angle = x - (order / 2 + 0.25) * np.pi
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    wave = even * sin + odd * cos if second else even * cos - odd * sin
    return jnp.sqrt(2 / (np.pi * x)) * wave


def _bessel(name: str, order: int, *, second: bool) -> None:
    def call(self: Array) -> Array:
        x = self.astype(jnp.float64)
        size = x if second else jnp.abs(x)
        near = (_second_kind if second else _first_kind)(jnp.minimum(size, _FAR), order)
        y = jnp.where(size < _FAR, near, _far(jnp.maximum(size, _FAR), order, second=second))
        if second:
            return jnp.where(x < 0, jnp.nan, jnp.where(x == 0, -jnp.inf, y))
        odd = jnp.where(x == 0, x, jnp.where(x < 0, -y, y))  # the TPU has no sign bit of float64
        return odd if order else y

    lowering(f"aten::special_bessel_{name}")(call)


def _scaled_k(x: Array, order: int) -> Array:
    """exp(x) K(x)."""
    near = jnp.minimum(x, _FAR_MODIFIED)
    t = near * near / 4
    first = (near / 2) ** order * _sum(_series(order, 1, lambda _: 1), t)
    log = jnp.log(near / 2)
    if order == 0:
        series = _sum(_series(0, 1, _harmonic), t) - (log + np.euler_gamma) * first
    else:
        series = 1 / near + log * first - near / 4 * _sum(_series(1, 1, _digammas), t)
    far = jnp.maximum(x, _FAR_MODIFIED)
    outer = jnp.sqrt(np.pi / (2 * far)) * _sum(_hankel(order, 18), 1 / far)
    y = jnp.where(x < _FAR_MODIFIED, jnp.exp(near) * series, outer)
    return jnp.where(x < 0, jnp.nan, jnp.where(x == 0, jnp.inf, y))


def _modified(order: int) -> None:
    def plain(self: Array) -> Array:
        x = self.astype(jnp.float64)
        return jnp.exp(-x) * _scaled_k(x, order)

    def scaled(x: Array) -> Array:
        return _scaled_k(x.astype(jnp.float64), order)

    lowering(f"aten::special_modified_bessel_k{order}")(plain)
    lowering(f"aten::special_scaled_modified_bessel_k{order}")(scaled)


for _order in (0, 1):
    _bessel(f"j{_order}", _order, second=False)
    _bessel(f"y{_order}", _order, second=True)
    _modified(_order)


def _airy_far(terms: int) -> list[float]:
    """u_k of DLMF 9.7.2."""
    found = [1.0]
    for k in range(1, terms):
        found.append(found[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    return found


def _airy_series(first: float) -> list[float]:
    """Coefficients of x^(3k) in the two solutions of y'' = x y, DLMF 9.4.1."""
    found = [1.0]
    for k in range(1, _TERMS):
        found.append(found[-1] / ((3 * k - 1 + first) * (3 * k + first)))
    return found


@lowering("aten::special_airy_ai")
def airy_ai(x: Array) -> Array:
    """Ai(x)."""
    x = x.astype(jnp.float64)
    near = jnp.clip(x, -_FAR_AIRY, _FAR_AIRY)
    at_0 = 3 ** (-2 / 3) / math.gamma(2 / 3)
    slope_at_0 = 3 ** (-1 / 3) / math.gamma(1 / 3)
    cube = near**3
    series = at_0 * _sum(_airy_series(0), cube) - slope_at_0 * near * _sum(_airy_series(1), cube)
    size = jnp.maximum(jnp.abs(x), _FAR_AIRY)
    z, u = 2 / 3 * size**1.5, _airy_far(18)
    scale = 1 / (np.sqrt(np.pi) * size**0.25)
    signs = [(-1) ** k for k in range(18)]
    decay = scale / 2 * jnp.exp(-z) * _sum([s * c for s, c in zip(signs, u, strict=True)], 1 / z)
    even = _sum([s * c for s, c in zip(signs[:9], u[::2], strict=True)], 1 / (z * z))
    odd = _sum([s * c for s, c in zip(signs[:9], u[1::2], strict=True)], 1 / (z * z)) / z
    wave = scale * (jnp.cos(z - np.pi / 4) * even + jnp.sin(z - np.pi / 4) * odd)
    return jnp.where(jnp.abs(x) < _FAR_AIRY, series, jnp.where(x > 0, decay, wave))
