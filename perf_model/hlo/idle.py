"""Loads idle.toml: the cycles that the TPU compiler gives a kernel for doing next to nothing."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from torchtpu.perf_model.chip import Chip, sources
from torchtpu.perf_model.facts import Fact, FactError, parse_fact, read_toml

PATH = Path(__file__).parent / "idle.toml"
_TABLE = "idle_cycles"


@functools.cache
def facts() -> Mapping[str, Fact]:
    """The numbers by chip, with unit and source. Raises FactError for a file that is not so."""
    data = read_toml(PATH)
    table = data.get(_TABLE)
    if set(data) != {"date", _TABLE} or not isinstance(table, dict):
        raise FactError(f"{PATH.name}: expected date and the table [{_TABLE}], got {sorted(data)}")
    return {
        name: parse_fact(f"{PATH.name}: {_TABLE}.{name}", entry, sources())
        for name, entry in table.items()
    }


def idle_s(chip: Chip) -> float:
    """Seconds of that part of a kernel's estimate; 0 for a chip that it is not known of."""
    fact = facts().get(chip.name)
    return fact.value / chip.clock_hz if fact else 0.0
