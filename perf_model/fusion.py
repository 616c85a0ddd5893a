"""Groups the ops of a graph into the kernels that a TPU compiler would make of them.

Three linear passes, each of which keeps the kernels in an order that can be executed:

1. `_absorb`, from the last op to the first: a producer joins the kernel that is its only consumer (so nothing can
   lie between them); broadcasts and cheap producers are recomputed in several consumers; a matmul or reduction takes
   the elementwise ops behind it as epilogue.
2. `_merge_into_first_consumer`: an elementwise kernel whose result is needed elsewhere too joins its first consumer
   as a second output, which saves reading it back.
3. `_merge_siblings`: reductions of the same value share one pass over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchtpu.perf_model.costs.registry import Kind, Rule, rule_for
from torchtpu.perf_model.program import Graph, Op

_MAX_COPIES = 8  # kernels a cheap producer may be recomputed in
_MAX_TINY_COPIES = 64
_TINY_BYTES = 1024
_RECOMPUTE_BYTES = 1.1  # operand bytes / result bytes up to which recomputing costs no extra traffic
_SMALL_PART = 16  # an expensive op this much smaller than its consumers may be recomputed
_SIDE_EFFECTS = frozenset({"custom_call", "infeed", "outfeed", "send", "recv"})
_PARTIAL_READS = frozenset({"slice", "dynamic_slice", "gather", "dynamic_gather"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """One fused kernel.

    ops: indices into the graph's ops, in execution order. hero: the op that gives the kernel its name and kind.
    reads: (value, bytes) from HBM. writes: (value, bytes) to HBM, new memory unless in `in_place`, which lists
    (written value, the value whose memory it takes over).
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


@dataclass(slots=True)
class _Group:
    """A kernel under construction. `root` is its last root: the op at whose place in the graph it runs."""

    root: int
    kind: Kind
    hero: int
    elements: int
    ops: list[int] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)


class _Fuser:
    """The state of the passes over one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rules: list[Rule] = [rule_for(op) for op in graph.ops]
        self.sizes = [t.elements for t in graph.types]
        self.producer = [-1] * len(graph.types)
        self.source = list(range(len(graph.types)))
        self._resolve_aliases()
        self.outputs = {self.source[v] for v in graph.outputs}
        self.groups: list[_Group] = []
        self.parent: list[int] = []
        self.users: list[set[int] | None] = [None] * len(graph.types)
        self.hard: set[int] = set(self.outputs)
        self.feeds_matmul: set[int] = set()

    def _resolve_aliases(self) -> None:
        source, producer = self.source, self.producer
        for index, (op, rule) in enumerate(zip(self.graph.ops, self.rules, strict=True)):
            if rule.kind is Kind.ALIAS and op.operands:
                for position, result in enumerate(op.results):
                    source[result] = source[op.operands[min(position, len(op.operands) - 1)]]
            for result in op.results:
                producer[result] = index

    def operands(self, index: int) -> list[int]:
        """The operands of an op, seen through aliases."""
        source = self.source
        return [source[v] for v in self.graph.ops[index].operands]

    def find(self, group: int) -> int:
        """The group that `group` was merged into."""
        parent = self.parent
        while parent[group] != group:
            parent[group] = parent[parent[group]]
            group = parent[group]
        return group

    # ---- pass 1 -------------------------------------------------------------------------------------------------

    def absorb(self) -> None:
        """Assign every live op to one or more groups, from the last op to the first."""
        for index in range(len(self.graph.ops) - 1, -1, -1):
            kind = self.rules[index].kind
            op = self.graph.ops[index]
            users = self._users_of(op)
            if kind is Kind.ALIAS:
                continue
            live = bool(users) or any(r in self.hard for r in op.results) or op.opcode in _SIDE_EFFECTS
            if not live or op.opcode == "constant":
                if users and op.opcode == "constant":
                    self._join(index, users)
                continue
            homes = self._homes(index, op, kind, users)
            if homes is None:
                self._new_group(index, kind)
            else:
                self._join(index, homes)

    def _users_of(self, op: Op) -> set[int]:
        if len(op.results) == 1:
            return self.users[op.results[0]] or set()
        return set().union(*(self.users[r] or () for r in op.results))

    def _homes(self, index: int, op: Op, kind: Kind, users: set[int]) -> set[int] | None:
        """The groups an op can be computed in, None when it needs a kernel of its own."""
        if any(r in self.hard for r in op.results):
            return None
        if kind is Kind.VIRTUAL:
            return users
        if kind in {Kind.MATMUL, Kind.REDUCE}:
            return users if self._takes_epilogue(op, users) else None
        if kind is not Kind.LOOP or (op.results[0] in self.feeds_matmul and self._too_dear(index, users)):
            return None
        return users if len(users) == 1 or self._may_copy(index, op, users) else None

    def _takes_epilogue(self, op: Op, users: set[int]) -> bool:
        """Whether the one consumer is an elementwise kernel over no more elements than this result."""
        if len(users) != 1 or len(op.results) != 1 or op.results[0] in self.feeds_matmul:
            return False
        group = self.groups[next(iter(users))]
        return group.kind is Kind.LOOP and group.elements <= self.sizes[op.results[0]]

    def _too_dear(self, index: int, users: set[int]) -> bool:
        """Whether an op is too expensive to be computed again for every tile of a matmul."""
        if not self.rules[index].expensive:
            return False
        size = self.sizes[self.graph.ops[index].results[0]]
        return any(size * _SMALL_PART > self.groups[g].elements for g in users)

    def _may_copy(self, index: int, op: Op, users: set[int]) -> bool:
        """Whether recomputing an op in every consumer costs no more memory traffic than storing it once."""
        result_bytes = self.graph.types[op.results[0]].size_bytes
        if result_bytes <= _TINY_BYTES:
            return len(users) <= _MAX_TINY_COPIES
        if len(users) > _MAX_COPIES or self._too_dear(index, users):
            return False
        return sum(map(self._read_bytes, self.operands(index))) <= _RECOMPUTE_BYTES * result_bytes

    def _read_bytes(self, value: int) -> int:
        """Bytes behind a value: a broadcast costs what it broadcasts, a constant nothing."""
        producer = self.producer[value]
        if producer < 0 or self.rules[producer].kind is not Kind.VIRTUAL:
            return self.graph.types[value].size_bytes
        return sum(self.graph.types[v].size_bytes for v in self.operands(producer))

    def _new_group(self, index: int, kind: Kind) -> None:
        op = self.graph.ops[index]
        number = len(self.groups)
        size = max((self.sizes[r] for r in op.results), default=0)
        kind = Kind.LOOP if kind is Kind.VIRTUAL else kind
        self.groups.append(_Group(root=index, kind=kind, hero=index, elements=size, roots=[index]))
        self.parent.append(number)
        self._add(index, {number}, inside_matmul=False)

    def _join(self, index: int, homes: set[int]) -> None:
        kind = self.rules[index].kind
        if kind in {Kind.MATMUL, Kind.REDUCE}:
            group = self.groups[next(iter(homes))]
            group.kind, group.hero = kind, index
        result = self.graph.ops[index].results[0]
        self._add(index, homes, inside_matmul=result in self.feeds_matmul)

    def _add(self, index: int, homes: set[int], *, inside_matmul: bool) -> None:
        """Record an op in its groups and its groups as users of its operands."""
        op, kind = self.graph.ops[index], self.rules[index].kind
        size = self._iteration_space(op, kind)
        for home in homes:
            group = self.groups[home]
            group.ops.append(index)
            group.elements = max(group.elements, size)
        into_matmul = kind is Kind.MATMUL or inside_matmul
        for position, value in enumerate(self.operands(index)):
            known = self.users[value]
            if known is None:
                self.users[value] = set(homes)
            else:
                known |= homes
            if into_matmul:
                self.feeds_matmul.add(value)
            if kind is Kind.OTHER or (kind is Kind.UPDATE and (position == 0 or op.opcode == "scatter")):
                self.hard.add(value)

    def _iteration_space(self, op: Op, kind: Kind) -> int:
        """Elements that the op's loop runs over; 0 where it has no loop of its own."""
        if kind is Kind.LOOP:
            return self.sizes[op.results[0]]
        return max(self.sizes[v] for v in op.operands) if kind is Kind.REDUCE else 0

    # ---- passes 2 and 3 -----------------------------------------------------------------------------------------

    def position(self, group: int) -> int:
        """When a group runs: at its last root."""
        return self.groups[self.find(group)].root

    def _merge(self, early: int, late: int) -> None:
        """Run group `early` inside `late`, which is not after any other consumer of `early`."""
        early, late = self.find(early), self.find(late)
        if early == late:
            return
        self.parent[early] = late
        self.groups[late].ops.extend(self.groups[early].ops)
        self.groups[late].roots.extend(self.groups[early].roots)
        self.groups[early].ops = []

    def _consumers(self, number: int) -> set[int]:
        """The other groups that read what a group writes."""
        found: set[int] = set()
        for root in self.groups[number].roots:
            for result in self.graph.ops[root].results:
                found.update(map(self.find, self.users[result] or ()))
        found.discard(number)
        return found

    def merge_into_first_consumer(self) -> None:
        """Elementwise kernels become a further output of the first kernel that reads them."""
        for number, group in enumerate(self.groups):  # groups are numbered from the last to the first
            if group.kind is not Kind.LOOP or self.parent[number] != number:
                continue
            consumers = self._consumers(number)
            if not consumers:
                continue
            first = min(consumers, key=self.position)
            target = self.groups[first]
            if target.kind in {Kind.LOOP, Kind.REDUCE} and target.elements == group.elements:
                self._merge(number, first)

    def merge_siblings(self) -> None:
        """Reductions over the same value share a pass, as long as no result is needed in between."""
        readers: dict[int, list[int]] = {}
        for number in range(len(self.groups) - 1, -1, -1):
            if self.groups[number].kind is Kind.REDUCE and self.parent[number] == number:
                largest = self._largest_read(self.groups[number])
                if largest >= 0:
                    readers.setdefault(largest, []).append(number)
        for numbers in readers.values():
            numbers.sort(key=self.position)
            for early, late in zip(numbers, numbers[1:], strict=False):
                self._merge_reductions(early, late)

    def _merge_reductions(self, early: int, late: int) -> None:
        a, b = self.groups[early], self.groups[late]
        if a.elements != b.elements:
            return
        consumers = self._consumers(early)
        if late in consumers or any(self.position(c) <= b.root for c in consumers):
            return
        self._merge(early, late)

    def _largest_read(self, group: _Group) -> int:
        members = set(group.ops)
        best, size = -1, 0
        for index in group.ops:
            for value in self.operands(index):
                if self.producer[value] not in members and self.sizes[value] > size:
                    best, size = value, self.sizes[value]
        return best

    # ---- result -------------------------------------------------------------------------------------------------

    def schedule(self) -> Schedule:
        """The groups as kernels, with what each reads and writes."""
        order = sorted((g for g in range(len(self.groups)) if self.parent[g] == g), key=self.position)
        kernels = tuple(self._kernel(number) for number in order)
        return Schedule(graph=self.graph, kernels=kernels, source=tuple(self.source))

    def _kernel(self, number: int) -> Kernel:
        group = self.groups[number]
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
                    writes.append((result, _update_bytes(op, self.graph) if op.opcode != "while" else 0))
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
        self, index: int, op: Op, members: Mapping[int, None], updated: Mapping[int, int], reads: dict[int, int]
    ) -> None:
        graph = self.graph
        for position, value in enumerate(self.operands(index)):
            producer = self.producer[value]
            if producer in members and producer != index:
                continue
            if position in updated:
                if op.opcode == "scatter":
                    reads[value] = reads.get(value, 0) + _update_bytes(op, graph)
                continue
            if producer >= 0 and graph.ops[producer].opcode == "constant" and graph.ops[producer].attrs.get("splat", True):
                continue
            size = graph.types[value].size_bytes
            part = graph.types[op.results[0]].size_bytes if position == 0 and op.opcode in _PARTIAL_READS else size
            reads[value] = min(size, reads.get(value, 0) + part)

    def _updated_in_place(self, index: int, number: int) -> dict[int, int]:
        """{position: operand value} of the operands whose memory the results of an update or loop take over."""
        op = self.graph.ops[index]
        if op.opcode == "while":
            positions = range(min(len(op.results), len(op.operands)))
        elif self.rules[index].kind is Kind.UPDATE:
            positions = range(1)
        else:
            return {}
        found: dict[int, int] = {}
        for position in positions:
            value = self.source[op.operands[position]]
            if value not in found.values() and self._dies_in(value, number):
                found[position] = value
        return found

    def _dies_in(self, value: int, number: int) -> bool:
        """Whether group `number` is the only reader of a value whose memory may be overwritten."""
        if value in self.outputs or {self.find(g) for g in self.users[value] or ()} != {number}:
            return False
        producer = self.producer[value]
        if producer < 0:
            return value in self.graph.donated
        return self.graph.ops[producer].opcode != "constant"

    def _is_written(self, value: int, number: int) -> bool:
        """Whether a root's result leaves the kernel."""
        if self.producer[value] not in self.groups[number].roots:
            return False
        if value in self.outputs:
            return True
        return any(self.find(g) != number for g in self.users[value] or ())


def _update_bytes(op: Op, graph: Graph) -> int:
    """Bytes of the part that an in-place update writes."""
    if op.opcode == "dynamic_update_slice":
        return graph.types[op.operands[1]].size_bytes
    operands = (len(op.operands) - 1) // 2
    return sum(graph.types[v].size_bytes for v in op.operands[operands + 1 :])


def fuse(graph: Graph) -> Schedule:
    """The kernels of a graph; linear in the number of ops."""
    fuser = _Fuser(graph)
    fuser.absorb()
    fuser.merge_into_first_consumer()
    fuser.merge_siblings()
    return fuser.schedule()
