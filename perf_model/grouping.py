"""Groups the ops of a graph into the kernels that a TPU compiler would make of them.

Three linear passes, each of which keeps the groups in an order that can be executed:

1. `absorb`, from the last op to the first: a producer joins the group that is its only consumer,
   so nothing can lie between them; broadcasts and cheap producers are recomputed in several
   consumers; a matmul or reduction takes the elementwise ops behind it as epilogue.
2. `merge_into_first_consumer`: an elementwise group whose result is needed elsewhere too joins its
   first consumer as a second output, which saves reading it back.
3. `merge_siblings`: reductions of the same value share one pass over it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from torchtpu.perf_model.costs.registry import Kind, Rule, rule_for
from torchtpu.perf_model.program import Graph, Op

_MAX_COPIES = 8  # kernels a cheap producer may be recomputed in
_MAX_TINY_COPIES = 64
_WIDER = 2.2  # bytes a matmul may read for one that it would read of a stored operand: f32 for bf16
_MAX_ROOTS = 16  # values that one is followed back to
_TINY_BYTES = 1024
_RECOMPUTE_BYTES = 1.1  # operand / result bytes up to which recomputing adds no traffic
_SMALL_PART = 16  # an expensive op this much smaller than its consumers may be recomputed
_SIDE_EFFECTS = frozenset({"custom_call", "infeed", "outfeed", "send", "recv"})


@dataclass(slots=True)
class Group:
    """A kernel under construction; it runs at the place of its last root in the graph."""

    root: int
    kind: Kind
    hero: int
    elements: int
    ops: list[int] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)


class Grouping:
    """The state of the passes over one graph.

    recompute: what can be had from one stored value element by element is not stored beside it,
    however dear it is, unless a matmul would compute it for every tile; the TPU compiler does so.
    """

    def __init__(self, graph: Graph, *, recompute: bool = False) -> None:
        self.graph = graph
        self.recompute = recompute
        self.rules: list[Rule] = [rule_for(op) for op in graph.ops]
        self.sizes = [t.elements for t in graph.types]
        self.producer = [-1] * len(graph.types)
        self.source = list(range(len(graph.types)))
        self._resolve_aliases()
        self.root_bytes = self._root_bytes() if recompute else []
        self.outputs = {self.source[v] for v in graph.outputs}
        self.groups: list[Group] = []
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

    def _root_bytes(self) -> list[int]:
        """Bytes of the stored values that each value can be computed from element by element."""
        types, source = self.graph.types, self.source
        roots: list[frozenset[int]] = [frozenset({v}) for v in range(len(types))]
        for op, rule in zip(self.graph.ops, self.rules, strict=True):
            if rule.kind in {Kind.LOOP, Kind.VIRTUAL} and len(op.results) == 1:
                found = frozenset().union(*(roots[source[v]] for v in op.operands))
                if len(found) <= _MAX_ROOTS:
                    roots[op.results[0]] = found
        return [sum(types[v].size_bytes for v in found) for found in roots]

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

    def absorb(self) -> None:
        """Assign every live op to one or more groups, from the last op to the first."""
        for index in range(len(self.graph.ops) - 1, -1, -1):
            kind = self.rules[index].kind
            op = self.graph.ops[index]
            users = self._users_of(op)
            if kind is Kind.ALIAS:
                continue
            live = (
                bool(users) or any(r in self.hard for r in op.results) or op.opcode in _SIDE_EFFECTS
            )
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
        if kind is not Kind.LOOP:
            return None
        if op.results[0] in self.feeds_matmul and not self._may_feed_matmul(index, op, users):
            return None
        return users if len(users) == 1 or self._may_copy(index, op, users) else None

    def _takes_epilogue(self, op: Op, users: set[int]) -> bool:
        """Whether the one consumer is an elementwise group of no more elements than the result."""
        if len(users) != 1 or len(op.results) != 1 or op.results[0] in self.feeds_matmul:
            return False
        group = self.groups[next(iter(users))]
        return group.kind is Kind.LOOP and group.elements <= self.sizes[op.results[0]]

    def _too_dear(self, index: int, users: set[int]) -> bool:
        """Whether an op is too expensive to be computed again for every tile of a matmul."""
        if not self.rules[index].expensive:
            return False
        if self.recompute:
            into_matmul = (self.groups[self.find(g)].kind is Kind.MATMUL for g in users)
            return self._transcends(index) and any(into_matmul)
        size = self.sizes[self.graph.ops[index].results[0]]
        return any(size * _SMALL_PART > self.groups[g].elements for g in users)

    def _transcends(self, index: int) -> bool:
        """Whether an op is dear even beside what a matmul takes to read an operand."""
        return self.rules[index].expensive and self.graph.ops[index].opcode != "divide"

    def _may_copy(self, index: int, op: Op, users: set[int]) -> bool:
        """Whether recomputing an op in every consumer adds no memory traffic to storing it."""
        result_bytes = self.graph.types[op.results[0]].size_bytes
        if result_bytes <= _TINY_BYTES:
            return len(users) <= _MAX_TINY_COPIES
        if len(users) > _MAX_COPIES or self._too_dear(index, users):
            return False
        return self._reads_no_more(index, op)

    def _may_feed_matmul(self, index: int, op: Op, users: set[int]) -> bool:
        """Whether a matmul may compute an operand itself: cheap, and no more to read."""
        if self.recompute and not self._transcends(index):
            made = self.graph.types[op.results[0]].size_bytes
            return self.root_bytes[op.results[0]] <= _WIDER * made
        return not self._too_dear(index, users) and self._reads_no_more(index, op)

    def _reads_no_more(self, index: int, op: Op) -> bool:
        """Whether an op reads about as many bytes as it makes."""
        made = self.graph.types[op.results[0]].size_bytes
        if self.recompute:
            return self.root_bytes[op.results[0]] <= _RECOMPUTE_BYTES * made
        return sum(map(self._read_bytes, self.operands(index))) <= _RECOMPUTE_BYTES * made

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
        self.groups.append(Group(root=index, kind=kind, hero=index, elements=size, roots=[index]))
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
            if kind is Kind.OTHER or (
                kind is Kind.UPDATE and (position == 0 or op.opcode == "scatter")
            ):
                self.hard.add(value)

    def _iteration_space(self, op: Op, kind: Kind) -> int:
        """Elements that the op's loop runs over; 0 where it has no loop of its own."""
        if kind is Kind.LOOP:
            return self.sizes[op.results[0]]
        return max(self.sizes[v] for v in op.operands) if kind is Kind.REDUCE else 0

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
        for number, group in enumerate(
            self.groups
        ):  # groups are numbered from the last to the first
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
        """Reductions over the same value share a pass, unless a result is needed in between."""
        readers: dict[int, list[int]] = {}
        for number in range(len(self.groups) - 1, -1, -1):
            if self.groups[number].kind is Kind.REDUCE and self.parent[number] == number:
                largest = self._largest_read(self.groups[number])
                if largest >= 0:
                    readers.setdefault(largest, []).append(number)
        for numbers in readers.values():
            numbers.sort(key=self.position)
            for early, late in itertools.pairwise(numbers):
                self._merge_reductions(early, late)

    def _merge_reductions(self, early: int, late: int) -> None:
        a, b = self.groups[early], self.groups[late]
        if a.elements != b.elements:
            return
        consumers = self._consumers(early)
        if late in consumers or any(self.position(c) <= b.root for c in consumers):
            return
        self._merge(early, late)

    def _largest_read(self, group: Group) -> int:
        members = set(group.ops)
        best, size = -1, 0
        for index in group.ops:
            for value in self.operands(index):
                if self.producer[value] not in members and self.sizes[value] > size:
                    best, size = value, self.sizes[value]
        return best

    def merged(self) -> list[int]:
        """The groups that were not merged into another, in execution order."""
        alive = (g for g in range(len(self.groups)) if self.parent[g] == g)
        return sorted(alive, key=self.position)
