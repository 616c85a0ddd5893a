"""The kernels of a graph: which ops run together, and what each kernel reads from and writes to
HBM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchtpu.perf_model.costs.registry import Kind
from torchtpu.perf_model.grouping import Grouping
from torchtpu.perf_model.program import Graph, Op

_PARTIAL_READS = frozenset({"slice", "dynamic_slice", "gather", "dynamic_gather"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """One fused kernel.

    ops: indices into the graph's ops, in execution order. hero: the op that gives the kernel its
    name and kind.
    reads: (value, bytes) from HBM. writes: (value, bytes) to HBM, new memory unless in `in_place`,
    which lists (written value, the value whose memory it takes over).
    """

    ops: tuple[int, ...]
    hero: int
    kind: Kind
    reads: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, int], ...]
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def hbm_bytes(self) -> int:
        """Bytes that this kernel moves between HBM and the core."""
        return sum(b for _, b in self.reads) + sum(b for _, b in self.writes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The kernels of a graph in execution order.

    `source` maps every value id to the one whose memory it names (itself, unless reshaped).
    """

    graph: Graph
    kernels: tuple[Kernel, ...]
    source: tuple[int, ...]


class _Boundaries:
    """What crosses the border of each group."""

    def __init__(self, grouping: Grouping) -> None:
        self.made = grouping
        self.graph = grouping.graph

    def kernel(self, number: int) -> Kernel:
        group = self.made.groups[number]
        members = dict.fromkeys(sorted(group.ops))
        reads: dict[int, int] = {}
        writes: list[tuple[int, int]] = []
        in_place: list[tuple[int, int]] = []
        for index in members:
            op = self.graph.ops[index]
            updated = self._updated_in_place(index, number)
            self._add_reads(index, op, members, updated, reads)
            for position, result in enumerate(op.results):
                if not self._is_written(result, number):
                    continue
                taken = updated.get(position)
                if taken is None:
                    writes.append((result, self.graph.types[result].size_bytes))
                else:
                    writes.append(
                        (result, _update_bytes(op, self.graph) if op.opcode != "while" else 0)
                    )
                    in_place.append((result, taken))
        return Kernel(
            ops=tuple(members),
            hero=group.hero,
            kind=group.kind,
            reads=tuple(reads.items()),
            writes=tuple(writes),
            in_place=tuple(in_place),
        )

    def _add_reads(
        self,
        index: int,
        op: Op,
        members: Mapping[int, None],
        updated: Mapping[int, int],
        reads: dict[int, int],
    ) -> None:
        graph = self.graph
        for position, value in enumerate(self.made.operands(index)):
            producer = self.made.producer[value]
            if producer in members and producer != index:
                continue
            if position in updated:
                if op.opcode == "scatter":
                    reads[value] = reads.get(value, 0) + _update_bytes(op, graph)
                continue
            if (
                producer >= 0
                and graph.ops[producer].opcode == "constant"
                and graph.ops[producer].attrs.get("splat", True)
            ):
                continue
            size = graph.types[value].size_bytes
            part = (
                graph.types[op.results[0]].size_bytes
                if position == 0 and op.opcode in _PARTIAL_READS
                else size
            )
            reads[value] = min(size, reads.get(value, 0) + part)

    def _updated_in_place(self, index: int, number: int) -> dict[int, int]:
        """{position: operand value} of the operands whose memory the results of an update or loop
        take over.
        """
        op = self.graph.ops[index]
        if op.opcode == "while":
            positions = range(min(len(op.results), len(op.operands)))
        elif self.made.rules[index].kind is Kind.UPDATE:
            positions = range(1)
        else:
            return {}
        found: dict[int, int] = {}
        for position in positions:
            value = self.made.source[op.operands[position]]
            if value not in found.values() and self._dies_in(value, number):
                found[position] = value
        return found

    def _dies_in(self, value: int, number: int) -> bool:
        """Whether group `number` is the only reader of a value whose memory may be overwritten."""
        if value in self.made.outputs or {
            self.made.find(g) for g in self.made.users[value] or ()
        } != {number}:
            return False
        producer = self.made.producer[value]
        if producer < 0:
            return value in self.graph.donated
        return self.graph.ops[producer].opcode != "constant"

    def _is_written(self, value: int, number: int) -> bool:
        """Whether a root's result leaves the kernel."""
        if self.made.producer[value] not in self.made.groups[number].roots:
            return False
        if value in self.made.outputs:
            return True
        return any(self.made.find(g) != number for g in self.made.users[value] or ())


def _update_bytes(op: Op, graph: Graph) -> int:
    """Bytes of the part that an in-place update writes."""
    if op.opcode == "dynamic_update_slice":
        return graph.types[op.operands[1]].size_bytes
    operands = (len(op.operands) - 1) // 2
    return sum(graph.types[v].size_bytes for v in op.operands[operands + 1 :])


def fuse(graph: Graph, *, recompute: bool = False) -> Schedule:
    """The kernels of a graph; linear in the number of ops. recompute: as `Grouping` says."""
    grouping = Grouping(graph, recompute=recompute)
    grouping.absorb()
    grouping.merge_into_first_consumer()
    grouping.merge_siblings()
    boundaries = _Boundaries(grouping)
    kernels = tuple(boundaries.kernel(number) for number in grouping.merged())
    return Schedule(graph=graph, kernels=kernels, source=tuple(grouping.source))
