"""Ops on lists of tensors: one program over the whole list, derived from the op on one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from torchtpu.lowerings import activations, elementary, pointwise, reductions, special
from torchtpu.lowerings.registry import Array, CallTypes, Lowering, enter, entry, lowering

_DEPENDS = (activations, elementary, pointwise, reductions, special)  # their entries are looked up


@dataclass(frozen=True, kw_only=True, eq=False)
class ForeachLowering(Lowering):
    """Applies `base` to each position of the lists; `names` maps its parameters to the list op's.

    Each element computes in the dtype of its own result. A list of numbers arrives as one array.
    """

    base: Lowering
    names: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, types: CallTypes, /, *key: Array, **kwargs: Any) -> Any:
        """Run the base lowering on the i-th element of every list, for every i."""
        assert types.outputs is not None, self.name
        results = []
        for i, output in enumerate(types.outputs):
            assert output is not None, self.name
            dtype = output.dtype if self.base.compute == "output" else None
            one = {p: _element(kwargs[n], i) for p, n in self.names.items() if n in kwargs}
            results.append(self.base(CallTypes(dtype, (output,)), **one))
        return results[0] if len(results) == 1 else results

    @property
    def parameters(self) -> tuple[str, ...]:
        """The list op's arguments."""
        return tuple(self.names.values())

    @property
    def optional(self) -> frozenset[str]:
        """None: the names are written for each op."""
        return frozenset()


def _element(value: Any, index: int) -> Any:
    """The index-th element of a list of tensors or of numbers; anything else is for all."""
    if isinstance(value, tuple) or (isinstance(value, jax.Array) and value.ndim == 1):
        return value[index]
    return value


def foreach(name: str, base: str, **names: str) -> None:
    """Enter `name` as `base` over lists; names: parameter of base = argument of name."""
    one = entry(base)
    enter(
        ForeachLowering(
            name=name,
            fn=one.fn,
            base=one,
            names=names,
            static=frozenset(names[p] for p in one.static if p in names),
            constants={names[p]: v for p, v in one.constants.items() if p in names},
            writes={},
            shape_only=frozenset(names[p] for p in one.shape_only if p in names),
        )
    )


_UNARY = """
    abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
    reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero clone max
"""
for _name in _UNARY.split():
    foreach(f"aten::_foreach_{_name}", f"aten::{_name}", self="self")

for _name in ("add", "sub"):
    _base = f"aten::{_name}.Tensor"
    foreach(f"aten::_foreach_{_name}.List", _base, self="self", other="other", alpha="alpha")
    foreach(f"aten::_foreach_{_name}.Scalar", _base, self="self", other="scalar")
    foreach(f"aten::_foreach_{_name}.ScalarList", _base, self="self", other="scalars")
foreach("aten::_foreach_add.Tensor", "aten::add.Tensor", self="self", other="other", alpha="alpha")

for _name, _base in {
    "mul": "mul.Tensor",
    "div": "div.Tensor",
    "maximum": "maximum",
    "minimum": "minimum",
}.items():
    foreach(f"aten::_foreach_{_name}.List", f"aten::{_base}", self="self", other="other")
    foreach(f"aten::_foreach_{_name}.Scalar", f"aten::{_base}", self="self", other="scalar")
    foreach(f"aten::_foreach_{_name}.ScalarList", f"aten::{_base}", self="self", other="scalars")
for _name in ("mul", "div"):
    foreach(f"aten::_foreach_{_name}.Tensor", f"aten::{_name}.Tensor", self="self", other="other")
for _name, _bound in {"clamp_min": "min", "clamp_max": "max"}.items():
    for _which, _argument in {"List": "other", "Scalar": "scalar", "ScalarList": "scalars"}.items():
        foreach(
            f"aten::_foreach_{_name}.{_which}",
            f"aten::{_name}",
            **{"self": "self", _bound: _argument},
        )

for _name in ("addcdiv", "addcmul"):
    # torch's own composition reads the .Tensor overloads' scalars on the CPU and calls .ScalarList.
    for _which, _argument in {"Scalar": "value", "ScalarList": "scalars"}.items():
        foreach(
            f"aten::_foreach_{_name}.{_which}",
            f"aten::{_name}",
            self="self",
            tensor1="tensor1",
            tensor2="tensor2",
            value=_argument,
        )

for _which, _weight in {"List": "weights", "Scalar": "weight", "ScalarList": "weight"}.items():
    foreach(
        f"aten::_foreach_lerp.{_which}",
        "aten::lerp.Tensor",
        self="self",
        end="tensors1",
        weight=_weight,
    )
for _which in ("List", "ScalarList", "ScalarAndTensor"):
    foreach(
        f"aten::_foreach_pow.{_which}", "aten::pow.Tensor_Tensor", self="self", exponent="exponent"
    )
foreach("aten::_foreach_pow.Scalar", "aten::pow.Tensor_Scalar", self="self", exponent="exponent")
foreach(
    "aten::_foreach_norm.Scalar", "aten::linalg_vector_norm", self="self", ord="ord", dtype="dtype"
)
foreach("aten::_foreach_copy", "aten::copy", self="self", src="src")


@lowering("aten::_amp_foreach_non_finite_check_and_unscale")
def non_finite_check_and_unscale(
    self: tuple[Array, ...], found_inf: Array, inv_scale: Array
) -> tuple[Array, ...]:
    """Gradients times inv_scale, and found_inf set to 1 where one of them is not finite."""
    bad = jnp.stack([jnp.any(~jnp.isfinite(g)) for g in self] or [jnp.zeros((), bool)])
    found = jnp.where(jnp.any(bad), jnp.ones_like(found_inf), found_inf)
    return (*(g * inv_scale.astype(g.dtype) for g in self), found)


@lowering("aten::_amp_update_scale")
def update_scale(
    self: Array,
    growth_tracker: Array,
    found_inf: Array,
    scale_growth_factor: Array,
    scale_backoff_factor: Array,
    growth_interval: int,
) -> tuple[Array, Array]:
    """The next loss scale: backed off after an infinity, grown after growth_interval good steps."""
    good = growth_tracker + 1
    grow = good == growth_interval
    grown = self * scale_growth_factor
    grown = jnp.where(grow & jnp.isfinite(grown), grown, self)
    scale = jnp.where(found_inf != 0, self * scale_backoff_factor, grown)
    return scale, jnp.where((found_inf != 0) | grow, 0, good)
