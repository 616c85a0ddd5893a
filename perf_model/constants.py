"""Loads constants.toml: the numbers of the cost model that belong to no single chip."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtpu.perf_model.chip import sources
from torchtpu.perf_model.facts import Fact, FactError, read_tables

PATH = Path(__file__).parent / "constants.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """Constants of the cost model; their meaning and source stand in constants.toml."""

    vector_efficiency: float
    index_cycles: float
    gather_valu_ops: float
    attention_valu_ops: float
    grid_step_cycles: float
    grouped_tile_rows: float
    grouped_tile_side: float
    launch_s: float
    host_dispatch_s: float


@functools.cache
def facts() -> Mapping[str, Fact]:
    """Every constant with unit, source and note, under its name."""
    return {key: fact for _, key, fact in read_tables(PATH, sources())}


@functools.cache
def constants() -> Constants:
    """The constants as plain numbers."""
    values = {name: fact.value for name, fact in facts().items()}
    try:
        return Constants(**values)
    except TypeError as error:
        raise FactError(f"{PATH.name}: {error}") from error
