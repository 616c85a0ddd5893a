"""Collectives seen from one device: the additions of a reduction; their time is the network's.

The network model (`torchtpu.perf_model.network.collectives`) needs a topology, which a rule does
not see: without one a collective is unmodelled, never free.
"""

from __future__ import annotations

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.costs.registry import FREE, Cost, Kind, rule
from torchtpu.perf_model.program import Graph, Op


def _time_of(op: Op) -> str:
    return f"the time of {op.opcode} needs a topology"


@rule("all_reduce", "reduce_scatter", kind=Kind.OTHER)
def _reduction(op: Op, graph: Graph, _chip: Chip) -> Cost:
    """A device adds what it receives: about one addition per element of its operands."""
    elements = sum(graph.types[value].elements for value in op.operands)
    return Cost(valu_ops=elements, unmodelled=_time_of(op))


@rule("all_gather", "all_to_all", "collective_permute", kind=Kind.OTHER)
@rule("collective_broadcast", "send", "recv", kind=Kind.OTHER)
def _movement(op: Op, _graph: Graph, _chip: Chip) -> Cost:
    return Cost(unmodelled=_time_of(op))


@rule("partition_id", "replica_id", kind=Kind.VIRTUAL)
def _number(_op: Op, _graph: Graph, _chip: Chip) -> Cost:
    return FREE
