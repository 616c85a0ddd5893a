"""Collectives among the ops of a program: which they are, what they move, and between whom."""

from __future__ import annotations

from dataclasses import dataclass

from torchtpu.perf_model.network.collectives import CollectiveCost, collective_cost
from torchtpu.perf_model.network.topology import Topology
from torchtpu.perf_model.program import Graph, Op

OPCODES = frozenset(
    {"all_gather", "all_reduce", "all_to_all", "collective_permute", "reduce_scatter"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One collective of a program.

    size_bytes: the whole array that the group shares. group: device numbers of one group; each
    member of a collective_permute sends its part to the next one.
    """

    kind: str
    size_bytes: int
    group: tuple[int, ...]

    def cost(self, topology: Topology) -> CollectiveCost:
        """Its closed-form cost while all groups of its form run it."""
        return collective_cost(self.kind, self.size_bytes, self.group, topology)


def exchange(op: Op, graph: Graph) -> Exchange | None:
    """Return what a collective exchanges; None for any other op."""
    if op.opcode not in OPCODES:
        return None
    sent = sum(graph.types[v].size_bytes for v in op.operands)
    received = sum(graph.types[v].size_bytes for v in op.results)
    group = op.ints("group") or _cycle(op.ints("pairs"))
    whole = op.opcode in {"all_to_all", "collective_permute"}
    size = sent * len(group) if whole else max(sent, received)
    return Exchange(kind=op.opcode, size_bytes=size, group=group)


def _cycle(pairs: tuple[int, ...]) -> tuple[int, ...]:
    """The devices along (source, target) pairs, given flat, from the first source on."""
    following = dict(zip(pairs[::2], pairs[1::2], strict=True))
    found = dict.fromkeys(pairs[:1])
    device = following.get(pairs[0]) if pairs else None
    while device is not None and device not in found:
        found[device] = None
        device = following.get(device)
    return tuple(found)
