"""A long program as parts: what repeats is compiled once, and no part is very long."""

from __future__ import annotations

from torchtpu.partition.assemble import assembled
from torchtpu.partition.cuts import Cutter, Limits
from torchtpu.partition.graph import Graph
from torchtpu.partition.lists import taken_apart
from torchtpu.partition.plan import Part, Plan, Run, whole
from torchtpu.program import Program

__all__ = ["Limits", "Part", "Plan", "Run", "partition"]

_LIMITS = Limits()


def partition(program: Program, limits: Limits = _LIMITS) -> Plan:
    """Return the parts of a program; they follow from its text alone. Stays whole where that pays.

    `partition(program).bind(lambda part: executor.executable(part).run)` runs as the whole does.
    """
    if len(program.nodes) <= limits.whole:
        return whole(program)
    apart = taken_apart(program)
    graph = Graph(apart.program)
    turned, cuts = apart.turned(Cutter(graph, limits).cuts(0, len(graph.nodes)))
    plan = assembled(Graph(turned, graph.known), cuts)
    long = len(graph.nodes) > limits.largest_part
    return plan if long or 2 * plan.compiled_nodes < len(graph.nodes) else whole(program)
