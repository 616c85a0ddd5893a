"""Special functions: error functions, gamma and Bessel families, entropies, zeta."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from torchtpu.lowerings.pointwise import alike, binary, unary
from torchtpu.lowerings.registry import Array, lowering


def _digamma(x: Array) -> Array:
    """lax.digamma with torch's poles: an infinity at 0, NaN at negative integers."""
    pole = (x < 0) & (x == jnp.floor(x))
    y = jnp.where(x == 0, -1 / x, lax.digamma(x))
    return jnp.where(pole, jnp.nan, y)


def _entropy(x: Array) -> Array:
    """-x log(x); 0 at 0, -inf below."""
    inside = -x * jnp.log(jnp.where(x > 0, x, 1))
    return jnp.where(jnp.isnan(x), x, jnp.where(x > 0, inside, jnp.where(x == 0, 0, -jnp.inf)))


def _erfcx(x: Array) -> Array:
    """exp(x^2) erfc(x): directly below 2, by Laplace's continued fraction above."""
    direct = jnp.exp(jnp.minimum(x, 2.5) ** 2) * lax.erfc(jnp.minimum(x, 2.5))
    y = jnp.maximum(x, 2.0)
    fraction = lax.fori_loop(0, 60, lambda i, f: y + ((60 - i) / 2).astype(y.dtype) / f, y)
    return jnp.where(x < 2.5, direct, 1 / (jnp.sqrt(jnp.pi).astype(x.dtype) * fraction))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "lgamma": lax.lgamma,
    "digamma": _digamma,
    "i0": special.i0,
    "special_i0e": special.i0e,
    "special_i1": special.i1,
    "special_i1e": special.i1e,
    "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": special.i1,
    "special_entr": _entropy,
    "special_erfcx": _erfcx,
    "special_ndtri": special.ndtri,
    "special_log_ndtr": special.log_ndtr,
}
for _name, _fn in _UNARY.items():
    unary(f"aten::{_name}", _fn)


@lowering("aten::special_spherical_bessel_j0", compute="output")
def spherical_bessel_j0(x: Array) -> Array:
    """sin(x) / x."""
    return jnp.where(jnp.isinf(x), 0, jnp.sinc(x / jnp.pi))


def _product(a: Array, log: Array, b: Array) -> Array:
    """a * log, 0 where a is 0 unless b is NaN."""
    return jnp.where(jnp.isnan(b), jnp.nan, jnp.where(a == 0, 0, a * log))


def _zeta(x: Array, q: Array) -> Array:
    """Hurwitz zeta, sum of (k + q)^-x; the terms of negative k + q are summed one by one."""
    x, q = jnp.broadcast_arrays(x, q)

    def term(state: tuple[Array, Array]) -> tuple[Array, Array]:
        q, total = state
        below = q < 0
        return jnp.where(below, q + 1, q), jnp.where(below, total + jnp.power(q, -x), total)

    limited = jnp.maximum(q, -1000)
    shifted, total = lax.while_loop(lambda s: jnp.any(s[0] < 0), term, (limited, jnp.zeros_like(q)))
    result = total + lax.zeta(x, shifted)
    pole = (q <= 0) & (q == jnp.floor(q))
    result = jnp.where(pole, jnp.inf, jnp.where((q < 0) & (x != jnp.floor(x)), jnp.nan, result))
    return jnp.where(x == 1, jnp.inf, jnp.where(x < 1, jnp.nan, result))


def _incomplete_gamma(
    fn: Callable[[Array, Array], Array], at_0: int
) -> Callable[[Array, Array], Array]:
    """fn(a, x) with torch's limits: at_0 for x = 0 or a = inf, 1 - at_0 for x = inf or a = 0."""

    def call(a: Array, x: Array) -> Array:
        y = jnp.where(jnp.isinf(x), 1 - at_0, fn(a, x))
        y = jnp.where(jnp.isinf(a), jnp.where(jnp.isinf(x), jnp.nan, at_0), y)
        y = jnp.where(x == 0, at_0, y)
        y = jnp.where(a == 0, jnp.where(x > 0, 1 - at_0, jnp.nan), y)
        return jnp.where((x < 0) | (a < 0), jnp.nan, y)

    return call


binary(
    "aten::xlogy",
    lambda a, b: _product(a, jnp.log(b), b),
    ("Tensor", "Scalar_Other", "Scalar_Self"),
)
_SPECIAL = ("", "other_scalar", "self_scalar")
binary("aten::special_xlog1py", lambda a, b: _product(a, jnp.log1p(b), b), _SPECIAL)
binary("aten::special_zeta", _zeta, _SPECIAL)
binary("aten::igamma", _incomplete_gamma(special.gammainc, at_0=0), ("",))
binary("aten::igammac", _incomplete_gamma(special.gammaincc, at_0=1), ("",))


@lowering("aten::polygamma", compute="output")
def polygamma(n: int, self: Array) -> Array:
    """The n-th derivative of digamma."""
    if n == 0:
        return _digamma(self)
    sign = 1 if n % 2 else -1
    order = jnp.full_like(self, n + 1)
    return sign * jnp.exp(lax.lgamma(order)) * _zeta(order, self)


def _polynomial(
    name: str, first: Callable[[Array], Array], step: Callable[[Array, Array, Array, Array], Array]
) -> None:
    """Enter an orthogonal polynomial by its three-term recurrence."""

    def call(x: Array, n: Array) -> Array:
        x, n = jnp.broadcast_arrays(*alike(x, n))
        order = n.astype(jnp.int32)
        one = jnp.ones_like(x)
        second = first(x)

        def body(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            k, before, last, result = state
            new = step(k, x, before, last)
            return k + 1, last, new, jnp.where(order == k + 1, new, result)

        start = jnp.where(order == 0, one, second)
        state = (jnp.ones((), jnp.int32), one, second, start)
        result = lax.while_loop(lambda s: s[0] < jnp.max(order, initial=0), body, state)[3]
        return jnp.where(order < 0, 0, result)

    names = [f"aten::special_{name}{o}" for o in ("", ".n_scalar", ".x_scalar")]
    lowering(*names, compute="output")(call)


def _chebyshev(k: Array, x: Array, before: Array, last: Array) -> Array:
    return 2 * x * last - before


def _at_shifted(fn: Callable[[Array], Array], x: Array) -> Array:
    return fn(2 * x - 1)


def _shifted(k: Array, x: Array, before: Array, last: Array) -> Array:
    return 2 * (2 * x - 1) * last - before


for _name, _first in {
    "t": lambda x: x,
    "u": lambda x: 2 * x,
    "v": lambda x: 2 * x - 1,
    "w": lambda x: 2 * x + 1,
}.items():
    _polynomial(f"chebyshev_polynomial_{_name}", _first, _chebyshev)
    _polynomial(f"shifted_chebyshev_polynomial_{_name}", partial(_at_shifted, _first), _shifted)
_polynomial(
    "hermite_polynomial_h", lambda x: 2 * x, lambda k, x, before, last: 2 * (x * last - k * before)
)
_polynomial("hermite_polynomial_he", lambda x: x, lambda k, x, before, last: x * last - k * before)
_polynomial(
    "laguerre_polynomial_l",
    lambda x: 1 - x,
    lambda k, x, before, last: ((2 * k + 1 - x) * last - k * before) / (k + 1),
)
_polynomial(
    "legendre_polynomial_p",
    lambda x: x,
    lambda k, x, before, last: ((2 * k + 1) * x * last - k * before) / (k + 1),
)
