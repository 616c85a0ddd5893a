"""Loads host.toml: what the host of a simulated device takes, beside the dispatch of programs."""

from __future__ import annotations

import functools
from pathlib import Path

from torchtpu.perf_model.chip import sources
from torchtpu.perf_model.facts import FactError, parse_fact, read_toml

PATH = Path(__file__).parent / "host.toml"


@functools.cache
def record_s() -> float:
    """Seconds of host time to record one op for a later program (fused mode)."""
    table = read_toml(PATH).get("host")
    if not isinstance(table, dict) or set(table) != {"record_s"}:
        raise FactError(f"{PATH.name}: host: expected a table of record_s, got {table!r}")
    return parse_fact(f"{PATH.name}: host.record_s", table["record_s"], sources()).value
