"""Elementwise arithmetic, comparison, logic, bits, selection and powers of one to four operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, convert, lowering, rounded

_POWERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)
_TENSOR_OR_SCALAR = ("Tensor", "Scalar")


def unary(name: str, fn: Callable[[Array], Array], **options: Any) -> None:
    """Enter `name(self)`; integers compute in the float dtype of the result."""

    def call(self: Array) -> Array:
        return fn(self)

    lowering(name, compute=options.pop("compute", "output"), **options)(call)


def binary(
    base: str,
    fn: Callable[[Array, Array], Array],
    overloads: Sequence[str] = _TENSOR_OR_SCALAR,
    **options: Any,
) -> None:
    """Enter `base(self, other)` under these overload names; "" is the one without a name."""

    def call(self: Array, other: Array) -> Array:
        return fn(*alike(self, other))

    names = [f"{base}.{o}" if o else base for o in overloads]
    lowering(*names, compute=options.pop("compute", "output"), **options)(call)


def alike(*values: Any) -> tuple[Array, ...]:
    """Return arrays; a compiled-in number takes the dtype of the first operand that is an array."""
    dtype = next((v.dtype for v in values if isinstance(v, jax.Array)), None)
    return tuple(v if isinstance(v, jax.Array) else jnp.asarray(v, dtype) for v in values)


def is_float(array: Array) -> bool:
    """Tell whether an array holds real floating point numbers."""
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def is_one(factor: Any) -> bool:
    """Tell whether a factor is the compiled-in number 1."""
    return not isinstance(factor, jax.Array) and bool(factor == 1)


@lowering("aten::add.Tensor", "aten::add.Scalar", compute="output", one_step=True)
def add(self: Array, other: Array, alpha: Array | int = 1) -> Array:
    """self + alpha * other."""
    return self + (other if is_one(alpha) else alpha * other)


@lowering("aten::sub.Tensor", "aten::sub.Scalar", compute="output", one_step=True)
def sub(self: Array, other: Array, alpha: Array | int = 1) -> Array:
    """self - alpha * other."""
    return self - (other if is_one(alpha) else alpha * other)


@lowering("aten::rsub.Tensor", "aten::rsub.Scalar", compute="output", one_step=True)
def rsub(self: Array, other: Array, alpha: Array | int = 1) -> Array:
    """other - alpha * self."""
    return other - (self if is_one(alpha) else alpha * self)


def multiply(a: Array, b: Array) -> Array:
    """a * b; "and" of bools."""
    return a & b if a.dtype == bool else a * b


def quotient(a: Array, b: Array) -> Array:
    """a / b, rounded once; XLA would multiply by the reciprocal of a b that it broadcasts."""
    if is_float(a) and b.shape != jnp.broadcast_shapes(a.shape, b.shape):
        b = jnp.where(a == a, b, jnp.nan)
    return jnp.divide(a, b)


def floor_division(a: Array, b: Array) -> Array:
    """floor(a / b), exact where a / b rounds up to an integer; a / 0 is an infinity or NaN."""
    if not is_float(a):
        return jnp.floor_divide(a, b)
    rest = lax.rem(*jnp.broadcast_arrays(a, b))
    quotient = (a - rest) / b
    quotient = jnp.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = jnp.where(quotient == 0, a / b * 0, floor)  # the zero has a sign
    return jnp.where(b == 0, a / b, floor)


def truncated_division(a: Array, b: Array, half: Any) -> Array:
    """a / b rounded towards zero; a quotient of two-byte floats is rounded to one before."""
    if is_float(a):
        return jnp.trunc(rounded(quotient(a, b), half if b.ndim else None))
    return lax.div(*jnp.broadcast_arrays(a, b))


@lowering("aten::div.Tensor_mode", "aten::div.Scalar_mode", compute="output", half=True)
def div_mode(self: Array, other: Array, rounding_mode: str | None, half: Any = None) -> Array:
    """self / other, rounded to minus infinity ("floor"), to zero ("trunc") or not."""
    self, other = alike(self, other)
    if rounding_mode == "trunc":
        return truncated_division(self, other, half)
    return (quotient if rounding_mode is None else floor_division)(self, other)


def _logaddexp(a: Array, b: Array) -> Array:
    """log(exp(a) + exp(b)); the imaginary part of a complex one is not brought into (-pi, pi]."""
    if not jnp.issubdtype(a.dtype, jnp.complexfloating):
        return jnp.logaddexp(a, b)
    low, high = jnp.where(a.real < b.real, a, b), jnp.where(a.real < b.real, b, a)
    both_infinite = jnp.isinf(high.real) & (high.real == low.real)
    sum_ = jnp.where(high.real < 0, low, jnp.log(jnp.exp(low) + jnp.exp(high)))
    return jnp.where(both_infinite, sum_, jnp.log1p(jnp.exp(low - high)) + high)


def _truncated_remainder(a: Array, b: Array) -> Array:
    return lax.rem(*jnp.broadcast_arrays(a, b))


binary("aten::mul", multiply, one_step=True)
binary("aten::div", quotient)
binary("aten::floor_divide", floor_division, ("", "Scalar"))
binary("aten::remainder", jnp.remainder, ("Tensor", "Scalar", "Scalar_Tensor"))
binary("aten::fmod", _truncated_remainder)
binary("aten::maximum", jnp.maximum, ("",), one_step=True)
binary("aten::minimum", jnp.minimum, ("",), one_step=True)
binary("aten::fmax", jnp.fmax, ("",))
binary("aten::fmin", jnp.fmin, ("",))
binary("aten::atan2", jnp.arctan2, ("",))
binary("aten::hypot", jnp.hypot, ("",))
binary("aten::copysign", jnp.copysign)
binary("aten::nextafter", jnp.nextafter, ("",), compute="as_is")
binary("aten::logaddexp", _logaddexp, ("",))
binary("aten::logaddexp2", jnp.logaddexp2, ("",))
binary("aten::gcd", jnp.gcd, ("",))
binary("aten::lcm", jnp.lcm, ("",))
for _name, _fn in {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}.items():
    binary(f"aten::{_name}", _fn, compute="inputs")


def _logical(name: str, fn: Callable[[Array, Array], Array]) -> None:
    binary(
        name, lambda a, b: fn(convert(a, jnp.bool_), convert(b, jnp.bool_)), ("",), compute="as_is"
    )


_logical("aten::logical_and", jnp.logical_and)
_logical("aten::logical_or", jnp.logical_or)
_logical("aten::logical_xor", jnp.logical_xor)
unary("aten::logical_not", lambda x: ~convert(x, jnp.bool_), compute="as_is")
unary("aten::bitwise_not", jnp.bitwise_not)
for _name, _fn in {"and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor}.items():
    binary(f"aten::bitwise_{_name}", _fn, ("Tensor", "Scalar", "Scalar_Tensor"))


def _shift_left(a: Array, b: Array) -> Array:
    if is_float(a):
        return a * jnp.exp2(b)
    bits = a.dtype.itemsize * 8
    return jnp.where((b < 0) | (b >= bits), jnp.zeros_like(a), jnp.left_shift(a, b))


def _shift_right(a: Array, b: Array) -> Array:
    if is_float(a):
        return a * jnp.exp2(-b)
    bits = a.dtype.itemsize * 8
    if jnp.issubdtype(a.dtype, jnp.unsignedinteger):
        return jnp.where(b >= bits, jnp.zeros_like(a), jnp.right_shift(a, b))
    return jnp.right_shift(a, jnp.where((b < 0) | (b >= bits), bits - 1, b))


for _name, _fn in {"left": _shift_left, "right": _shift_right}.items():
    binary(f"aten::bitwise_{_name}_shift", _fn, ("Tensor", "Tensor_Scalar", "Scalar_Tensor"))
    binary(f"aten::__{_name[0]}shift__", _fn)


@lowering("aten::pow.Tensor_Scalar", compute="output", constants={"exponent": _POWERS}, half=True)
def pow_tensor_scalar(self: Array, exponent: Array | float, half: Any = None) -> Array:
    """self ** exponent; small constant exponents are multiplications or roots."""
    if isinstance(exponent, jax.Array) or self.dtype == bool:
        return power(self, rounded(exponent, half))
    if exponent == 0.5:
        return jnp.sqrt(self)
    if exponent == -0.5:
        return 1 / jnp.sqrt(self)
    return lax.integer_pow(self, int(exponent))


@lowering("aten::pow.Tensor_Tensor", "aten::pow.Scalar", compute="output")
def power(self: Array, exponent: Array) -> Array:
    """self ** exponent; a negative power of an integer is 0 unless the base is 1 or -1."""
    self, exponent = jnp.broadcast_arrays(*alike(self, exponent))
    if jnp.issubdtype(self.dtype, jnp.inexact):
        return jnp.power(self, exponent)
    if self.dtype == bool:
        return self | ~exponent
    raised = jnp.power(self, jnp.abs(exponent))
    odd = jnp.where(exponent % 2 == 0, 1, self)
    negative = jnp.where(jnp.abs(self) == 1, odd, 0)
    return jnp.where(exponent < 0, negative, raised)


def _at_least(x: Array, bound: Any) -> Array:
    """The larger of both, x where they are equal: -0.0 stays beside 0.0."""
    x, bound = alike(x, bound)
    return jnp.where((x < bound) | (bound != bound), bound, x)


def _at_most(x: Array, bound: Any) -> Array:
    """The smaller of both, x where they are equal."""
    x, bound = alike(x, bound)
    return jnp.where((x > bound) | (bound != bound), bound, x)


@lowering("aten::clamp", "aten::clamp.Tensor", compute="output")
def clamp(self: Array, min: Array | None = None, max: Array | None = None) -> Array:
    """min(max(self, min), max); NaN in any of them is NaN."""
    if min is not None:
        self = _at_least(self, min)
    return self if max is None else _at_most(self, max)


@lowering("aten::clamp_min", "aten::clamp_min.Tensor", compute="output")
def clamp_min(self: Array, min: Array) -> Array:
    """max(self, min)."""
    return _at_least(self, min)


@lowering("aten::clamp_max", "aten::clamp_max.Tensor", compute="output")
def clamp_max(self: Array, max: Array) -> Array:
    """min(self, max)."""
    return _at_most(self, max)


@lowering("aten::lerp.Scalar", "aten::lerp.Tensor", compute="output")
def lerp(self: Array, end: Array, weight: Array) -> Array:
    """self + weight * (end - self), from the nearer end: weight 1 gives end exactly."""
    step = end - self
    return jnp.where(jnp.abs(weight) < 0.5, self + weight * step, end - step * (1 - weight))


@lowering("aten::addcmul", compute="output")
def addcmul(self: Array, tensor1: Array, tensor2: Array, value: Array | float = 1) -> Array:
    """self + value * tensor1 * tensor2."""
    return self + (tensor1 if is_one(value) else value * tensor1) * tensor2


@lowering("aten::addcdiv", compute="output")
def addcdiv(self: Array, tensor1: Array, tensor2: Array, value: Array | float = 1) -> Array:
    """self + value * tensor1 / tensor2."""
    return self + (tensor1 if is_one(value) else value * tensor1) / tensor2


@lowering("aten::where.self", compute="output", keep={"condition"})
def where(condition: Array, self: Array, other: Array) -> Array:
    """self where condition, else other."""
    return jnp.where(convert(condition, jnp.bool_), self, other)


@lowering("aten::heaviside", compute="as_is")
def heaviside(self: Array, values: Array) -> Array:
    """0 below zero, values at zero, 1 above; NaN counts as below."""
    return jnp.where(self == 0, values, (self > 0).astype(self.dtype))


@lowering(
    "aten::isin.Tensor_Tensor",
    "aten::isin.Tensor_Scalar",
    "aten::isin.Scalar_Tensor",
    compute="inputs",
)
def isin(
    elements: Array = None,
    test_elements: Array = None,
    element: Array = None,
    test_element: Array = None,
    assume_unique: bool = False,
    invert: bool = False,
) -> Array:
    """Tell for each element whether it is among the test elements."""
    sought = elements if elements is not None else element
    among = test_elements if test_elements is not None else test_element
    sought, among = alike(sought, among)
    return jnp.isin(sought, among, invert=invert)


@lowering("aten::clone")
def clone(self: Array) -> Array:
    """A copy."""
    return self


@lowering("aten::fill.Scalar", "aten::fill.Tensor", shape_only={"self"}, compute="output")
def fill(self: Array, value: Array) -> Array:
    """Every element is value."""
    return jnp.broadcast_to(alike(value)[0], self.shape)


@lowering("aten::zero", shape_only={"self"})
def zero(self: Array) -> Array:
    """Every element is 0."""
    return jnp.zeros_like(self)


@lowering("aten::copy", shape_only={"self"})
def copy(self: Array, src: Array) -> Array:
    """src, broadcast to self's shape."""
    return jnp.broadcast_to(src, self.shape)
