"""How each aten overload is computed on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchtpu.eager import dispatch, fallback
from torchtpu.eager.schema import overload

_COMPOSITES = (
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)


@dataclass(frozen=True, kw_only=True)
class Support:
    """An overload and its way: what `how` says, and by what.

    how: "lowering" (its own, or that of the functional form `by`), "kernel" (written by hand in
        torchtpu/eager), "composite" (torch composes it of other ops), "decomposition" (torch's
        rule, or the functional form `by` and a copy), "fallback" (the CPU, where that is allowed).
    """

    overload: str
    how: str
    by: str = ""


def support(name: str) -> Support:
    """Return how an overload ("aten::add.Tensor") is computed.

    Raises AttributeError where torch has no such overload.
    """
    from torchtpu.eager.view_ops import KERNELS
    from torchtpu.lowerings import table

    dispatch.install()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if name in KERNELS or any(has(name, key) for key in dispatch.OTHER_LAYOUTS):
        return Support(overload=name, how="kernel")
    if name in table():
        return Support(overload=name, how="lowering")
    if name in dispatch.derived:
        return Support(overload=name, how="lowering", by=dispatch.functional_forms[name])
    if any(has(name, key) for key in _COMPOSITES):
        return Support(overload=name, how="composite")
    op = overload(name)
    if fallback.decomposition(op) is not None:
        return Support(overload=name, how="decomposition")
    functional = fallback.functional_form(op)
    if functional is not None:
        return Support(overload=name, how="decomposition", by=dispatch.full_name(functional))
    return Support(overload=name, how="fallback")


def overloads() -> list[str]:
    """Return all aten overloads of this torch, by name."""
    names = torch._C._dispatch_get_all_op_names()
    return sorted(n for n in names if n.startswith("aten::"))
