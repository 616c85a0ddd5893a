"""Functions of one operand: exponentials, trigonometry, rounding, signs, parts of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.pointwise import is_float, unary
from torchtpu.lowerings.registry import Array, convert, lowering


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return lax.logistic(x)


def _if_float(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """fn for floats, nothing for integers, which are round already."""

    def apply(x: Array) -> Array:
        return fn(x) if is_float(x) else x

    return apply


def _sign(x: Array) -> Array:
    """-1, 0 or 1; 0 for NaN; x / |x| for complex numbers."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        size = jnp.abs(x)
        return jnp.where(size == 0, x, x / size)
    if x.dtype == bool:
        return x
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


for _name, _fn in {
    "neg": jnp.negative,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log2": jnp.log2,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "reciprocal": jnp.reciprocal,
    "sigmoid": sigmoid,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "tanh": jnp.tanh,
    "asinh": jnp.arcsinh,
    "acosh": jnp.arccosh,
    "atanh": jnp.arctanh,
    "sinc": jnp.sinc,
    "floor": _if_float(jnp.floor),
    "ceil": _if_float(jnp.ceil),
    "trunc": _if_float(jnp.trunc),
    "round": _if_float(jnp.round),
    "sign": _sign,
    "sgn": _sign,
    "frac": lambda x: x - jnp.trunc(x),
    "deg2rad": jnp.deg2rad,
    "rad2deg": jnp.rad2deg,
}.items():
    unary(f"aten::{_name}", _fn)


def _signbit(x: Array) -> Array:
    return jnp.signbit(x) if is_float(x) else x < 0


def _never(x: Array) -> Array:
    return jnp.zeros(x.shape, bool)


def _of_floats(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A test that is false for every integer."""
    return lambda x: fn(x) if jnp.issubdtype(x.dtype, jnp.inexact) else _never(x)


for _name, _fn in {
    "abs": jnp.abs,
    "signbit": _signbit,
    "isnan": _of_floats(jnp.isnan),
    "isinf": _of_floats(jnp.isinf),
    "isposinf": _of_floats(lambda x: x == jnp.inf),
    "isneginf": _of_floats(lambda x: x == -jnp.inf),
}.items():
    unary(f"aten::{_name}", _fn, compute="as_is")


@lowering("aten::round.decimals", compute="output")
def round_decimals(self: Array, decimals: int) -> Array:
    """Round to a number of decimal places, or of tens where that is negative."""
    if not is_float(self) or decimals == 0:
        return jnp.round(self) if is_float(self) else self
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return jnp.round(self * scale) / scale
    return jnp.round(self / scale) * scale


@lowering("aten::nan_to_num")
def nan_to_num(self: Array, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Array:
    """Replace NaN by nan (0), inf by posinf (the largest number), -inf by neginf (the smallest)."""
    if not jnp.issubdtype(self.dtype, jnp.inexact):
        return self
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        return lax.complex(
            nan_to_num(self.real, nan, posinf, neginf), nan_to_num(self.imag, nan, posinf, neginf)
        )
    limits = jnp.finfo(self.dtype)  # type: ignore[no-untyped-call]  # jax

    def number(value: Any, default: Any) -> Array:
        return jnp.asarray(default if value is None else value).astype(self.dtype)

    self = jnp.where(jnp.isnan(self), number(nan, 0), self)
    self = jnp.where(self == jnp.inf, number(posinf, limits.max), self)
    return jnp.where(self == -jnp.inf, number(neginf, limits.min), self)


@lowering("aten::frexp.Tensor")
def frexp(self: Array) -> tuple[Array, Array]:
    """Mantissa in [0.5, 1) and exponent: self = mantissa * 2 ** exponent."""
    wide = self.astype(jnp.float32) if self.dtype.itemsize == 2 else self
    mantissa, exponent = jnp.frexp(wide)
    mantissa = jnp.where(jnp.isfinite(wide), mantissa, wide)
    return mantissa, jnp.where(jnp.isfinite(wide), exponent, 0)


@lowering("aten::logit", compute="output")
def logit(self: Array, eps: Array | None = None) -> Array:
    """log(x / (1 - x)) of x clamped to [eps, 1 - eps]."""
    x = self if eps is None else jnp.clip(self, eps, 1 - eps)
    return jnp.log(x / (1 - x))


@lowering("aten::logit_backward", compute="output")
def logit_backward(grad_output: Array, self: Array, eps: Array | None = None) -> Array:
    """grad / (x (1 - x)) inside of [eps, 1 - eps], 0 outside; NaN outside of [0, 1] without eps."""
    slope = grad_output / (self * (1 - self))
    if eps is None:
        return jnp.where((self < 0) | (self > 1), jnp.nan, slope)
    return jnp.where((self < eps) | (self > 1 - eps), 0, slope)


def real_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of a complex dtype's parts; a real dtype is its own."""
    dtype = np.dtype(dtype)
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


@lowering("aten::angle")
def angle(self: Array) -> Array:
    """The argument of a complex number; 0 or pi of a real one, NaN of NaN."""
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        return jnp.angle(self)
    wide = self if is_float(self) else convert(self, jnp.float32)
    return jnp.where(jnp.isnan(wide), wide, jnp.where(wide < 0, np.pi, 0).astype(wide.dtype))


@lowering("aten::complex")
def complex_(real: Array, imag: Array) -> Array:
    """real + i imag."""
    real, imag = jnp.broadcast_arrays(real, imag)
    return lax.complex(real, imag)


@lowering("aten::polar")
def polar(abs: Array, angle: Array) -> Array:
    """abs * (cos(angle) + i sin(angle))."""
    return lax.complex(abs * jnp.cos(angle), abs * jnp.sin(angle))


@lowering("aten::_conj_physical")
def conj_physical(self: Array) -> Array:
    """The complex conjugate as new elements."""
    return jnp.conj(self) if jnp.issubdtype(self.dtype, jnp.complexfloating) else self
