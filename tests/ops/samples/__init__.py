"""Calls of overloads that no OpInfo reaches, by hand; a reference where the CPU has no kernel."""

from __future__ import annotations

from functools import cache

from tests.ops.samples import (
    attention,
    general,
    nested,
    optimizers,
    parts,
    quantization,
    recurrent_layers,
    sync_batch_norm,
    vendor,
)
from tests.ops.samples.call import Call

_FAMILIES = (
    attention,
    general,
    nested,
    optimizers,
    parts,
    quantization,
    recurrent_layers,
    sync_batch_norm,
    vendor,
)


def calls(name: str) -> list[Call]:
    """Return the hand-made calls of an overload."""
    return _calls().get(name, [])


@cache
def _calls() -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    for family in _FAMILIES:
        for names, made in family.made():
            for name in names.split():
                found.setdefault(f"aten::{name}", []).append(made)
    return found
