"""Elementwise ops: arithmetic, comparison, logic, rounding, powers and elementary functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering

_POWERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)


def unary(name: str, fn: Callable[[Array], Array], **options: Any) -> None:
    """Enter `name(self)`; integers compute in the float dtype of the result."""

    def call(self: Array) -> Array:
        return fn(self)

    lowering(name, compute=options.pop("compute", "output"), **options)(call)


def binary(base: str, fn: Callable[[Array, Array], Array], **options: Any) -> None:
    """Enter `base.Tensor(self, other)` and `base.Scalar(self, other)`."""

    def call(self: Array, other: Array) -> Array:
        return fn(self, other)

    lowering(f"{base}.Tensor", f"{base}.Scalar", compute=options.pop("compute", "output"), **options)(call)


for _name, _fn in {
    "abs": jnp.abs, "neg": jnp.negative, "exp": jnp.exp, "log": jnp.log, "log1p": jnp.log1p, "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt, "sin": jnp.sin, "cos": jnp.cos, "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid, "reciprocal": jnp.reciprocal,
}.items():
    unary(f"aten::{_name}", _fn, **({"compute": "as_is"} if _name == "abs" else {}))


@lowering("aten::add.Tensor", "aten::add.Scalar", compute="output")
def add(self: Array, other: Array, alpha: Array | int = 1) -> Array:
    """self + alpha * other."""
    return self + (other if _is_one(alpha) else alpha * other)


@lowering("aten::sub.Tensor", "aten::sub.Scalar", compute="output")
def sub(self: Array, other: Array, alpha: Array | int = 1) -> Array:
    """self - alpha * other."""
    return self - (other if _is_one(alpha) else alpha * other)


binary("aten::mul", lambda a, b: a & b if a.dtype == bool else a * b)
binary("aten::div", jnp.divide)
for _name, _fn in {
    "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater,
    "ge": jnp.greater_equal,
}.items():
    binary(f"aten::{_name}", _fn, compute="inputs")


@lowering("aten::pow.Tensor_Scalar", compute="output", constants={"exponent": _POWERS})
def pow_tensor_scalar(self: Array, exponent: Array | float) -> Array:
    """self ** exponent; small constant exponents are multiplications or roots."""
    if isinstance(exponent, jax.Array):
        return jnp.power(self, exponent)
    if exponent == 0.5:
        return jnp.sqrt(self)
    if exponent == -0.5:
        return lax.rsqrt(self)
    if float(exponent).is_integer():
        return lax.integer_pow(self, int(exponent))
    return jnp.power(self, exponent)


@lowering("aten::where.self", compute="output", keep={"condition"})
def where(condition: Array, self: Array, other: Array) -> Array:
    """self where condition, else other."""
    return jnp.where(condition, self, other)


@lowering("aten::clone")
def clone(self: Array) -> Array:
    """A copy."""
    return self


@lowering("aten::fill.Scalar", "aten::fill.Tensor", shape_only={"self"}, compute="output")
def fill(self: Array, value: Array) -> Array:
    """Every element is value."""
    return jnp.broadcast_to(value, self.shape)


@lowering("aten::zero", shape_only={"self"})
def zero(self: Array) -> Array:
    """Every element is 0."""
    return jnp.zeros_like(self)


def _is_one(alpha: Any) -> bool:
    return not isinstance(alpha, jax.Array) and alpha == 1


@lowering("aten::copy", shape_only={"self"})
def copy(self: Array, src: Array) -> Array:
    """src, broadcast to self's shape."""
    return jnp.broadcast_to(src, self.shape)
