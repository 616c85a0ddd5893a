"""How each aten overload is computed on the device."""

from __future__ import annotations

from dataclasses import dataclass

from torchtpu.eager import dispatch, fallback
from torchtpu.eager.schema import arguments, overload
from torchtpu.private import torch as private

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
    has = private.has_kernel
    if name in KERNELS:
        return Support(overload=name, how="kernel")
    if name in table():
        return Support(overload=name, how="lowering")
    if name in dispatch.derived:
        return Support(overload=name, how="lowering", by=dispatch.functional_forms[name])
    if any(has(name, key) for key in dispatch.OTHER_LAYOUTS):
        return Support(overload=name, how="kernel")
    if any(has(name, key) for key in _COMPOSITES):
        return Support(overload=name, how="composite")
    op = overload(name)
    if fallback.decomposition(op) is not None:
        return Support(overload=name, how="decomposition")
    functional = fallback.functional_form(op)
    if functional is not None:
        return Support(overload=name, how="decomposition", by=dispatch.full_name(functional))
    return Support(overload=name, how="fallback")


# Why in-place and out= forms are written by hand, by the file that holds them.
BY_HAND = {
    "conjugate": "a copy crosses devices and takes off lazy conjugates, which no lowering sees",
    "dynamic": "masks and CPU tensors among the indices need the host before the lowering",
    "flash_attention": "the schema returns something else than what it writes",
    "linalg": "torch composes the functional form, or the result of a check decides on an error",
    "out_variants": "the functional form has other arguments, is composed, or reads a size first",
    "quantize": "an observer that has seen nothing is grown first",
    "random_checks": "arguments are checked at every call, then the derived form runs",
    "vendor": "one call fills three tensors of which some may be undefined",
    "view_ops": "changes which elements a tensor names, and computes nothing",
}


def by_hand() -> dict[str, str]:
    """Return the files in torchtpu/eager that hold hand-written in-place and out= overloads."""
    from torchtpu.eager.view_ops import KERNELS

    dispatch.install()
    found = {}
    for name, kernel in KERNELS.items():
        if name.startswith("aten::") and any(a.written for a in arguments(overload(name)._schema)):
            module = kernel.__module__.rpartition(".")[2]
            if module != "functools":  # eager/composed.py derives those
                found[name] = module
    return found


def overloads() -> list[str]:
    """Return all aten overloads of this torch, by name."""
    names = private.all_op_names()
    return sorted(n for n in names if n.startswith("aten::"))
