"""Random bits."""

from __future__ import annotations

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.costs.registry import Cost, Kind, rule
from torchtpu.perf_model.program import Graph, Op

# Threefry-2x32: 20 rounds of add, rotate (two shifts and an or) and xor, plus key injections, give
# two words.
_OPS_PER_WORD = (20 * 5 + 15) / 2


@rule("rng_bit_generator", "rng", kind=Kind.OTHER)
def _bits(op: Op, graph: Graph, _chip: Chip) -> Cost:
    words = graph.types[op.results[-1]].size_bytes / 4
    return Cost(valu_ops=words * _OPS_PER_WORD)
