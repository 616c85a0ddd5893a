"""Control flow: a loop or branch itself is free, its bodies are costed as programs of their own."""

from __future__ import annotations

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.costs.registry import FREE, Cost, Kind, rule
from torchtpu.perf_model.program import Graph, Op


@rule("while", kind=Kind.OTHER)
def _while(op: Op, _graph: Graph, _chip: Chip) -> Cost:
    if op.trip_count is None:
        return Cost(unmodelled="loop with an unknown number of iterations, counted once")
    return FREE


@rule("case", "if", kind=Kind.OTHER)
def _branch(_op: Op, _graph: Graph, _chip: Chip) -> Cost:
    return FREE
