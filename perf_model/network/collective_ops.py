"""Collectives among the ops of a program: which they are, what they move, and between whom."""

from __future__ import annotations

from dataclasses import dataclass

from torchtpu.perf_model.network.collectives import CollectiveCost, collective_cost, permute_cost
from torchtpu.perf_model.network.topology import Topology
from torchtpu.perf_model.program import Graph, Op

OPCODES = frozenset(
    {"all_gather", "all_reduce", "all_to_all", "collective_permute", "reduce_scatter"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One collective of a program.

    size_bytes: the whole array that the group shares; of a permute, what a device sends.
    group: device numbers of one group; of a permute, its (source, target) pairs, flat.
    """

    kind: str
    size_bytes: int
    group: tuple[int, ...]

    def cost(self, topology: Topology) -> CollectiveCost:
        """Its closed-form cost while all groups of its form run it."""
        if self.kind == "collective_permute":
            return permute_cost(self.size_bytes, self.pairs, topology)
        return collective_cost(self.kind, self.size_bytes, self.group, topology)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The (source, target) pairs of a permute."""
        return tuple(zip(self.group[::2], self.group[1::2], strict=True))


def exchange(op: Op, graph: Graph) -> Exchange | None:
    """Return what a collective exchanges; None for any other op."""
    if op.opcode not in OPCODES:
        return None
    sent = sum(graph.types[v].size_bytes for v in op.operands)
    received = sum(graph.types[v].size_bytes for v in op.results)
    if op.opcode == "collective_permute":
        return Exchange(kind=op.opcode, size_bytes=sent, group=op.ints("pairs"))
    group = op.ints("group")
    size = sent * len(group) if op.opcode == "all_to_all" else max(sent, received)
    return Exchange(kind=op.opcode, size_bytes=size, group=group)
