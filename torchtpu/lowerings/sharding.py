"""How a value lies on the devices of a process that drives many."""

from __future__ import annotations

from torchtpu import sharding
from torchtpu.lowerings.registry import Array, lowering


@lowering("torchtpu::sharding_constraint")
def sharding_constraint(input: Array, spec: str) -> Array:
    """The same values; spec: as torchtpu.eager.sharding spells it."""
    dims = tuple(tuple(a for a in axes.split(",") if a) for axes in spec.split("|"))
    return sharding.constrained(input, dims if any(dims) else ())
