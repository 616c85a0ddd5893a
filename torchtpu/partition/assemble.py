"""From cuts to parts: what each takes and gives, one program for equal parts, what is donated."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from torchtpu.partition.graph import Graph
from torchtpu.partition.plan import Part, Plan
from torchtpu.program import ArrayType, Program, renumbered


def assembled(graph: Graph, cuts: Sequence[int]) -> Plan:
    """Return the plan whose parts start at the cuts."""
    pieces = [_Piece(graph, *ends) for ends in pairwise((*cuts, len(graph.nodes)))]
    uses = _Uses(graph.program, pieces)
    same: dict[Any, list[_Piece]] = defaultdict(list)
    for piece in pieces:
        same[piece.types, piece.nodes].append(piece)
    programs = {key: _program(members, uses) for key, members in same.items()}
    parts = [_part(piece, programs[piece.types, piece.nodes], uses) for piece in pieces]
    outputs, copies = _own_arrays(graph)
    return Plan((*parts, *copies), outputs)


class _Piece:
    """Nodes between two cuts, on numbers of their own: what they take by first use, then make."""

    def __init__(self, graph: Graph, start: int, stop: int) -> None:
        made = [v for node in range(start, stop) for v in graph.made(node)]
        own = set(made)
        reads = (v for node in range(start, stop) for v in graph.reads[node])
        self.takes = list(dict.fromkeys(v for v in reads if v not in own))
        self.values = self.takes + made
        numbers = {v: number for number, v in enumerate(self.values)}
        self.value_types = [graph.types[v] for v in self.values]
        self.types = tuple(self.value_types[: len(self.takes)])
        self.nodes = tuple(renumbered(graph.nodes[n], numbers) for n in range(start, stop))


class _Uses:
    """Who needs a value after the piece that makes or takes it."""

    def __init__(self, program: Program, pieces: Sequence[_Piece]) -> None:
        self._last = {v: piece for piece in pieces for v in piece.takes}
        self._kept = set(program.outputs)
        self._lent = set(range(len(program.inputs))) - set(program.donated)

    def needed(self, value: int) -> bool:
        """Tell whether anybody takes the value, or it is an output of the whole."""
        return value in self._last or value in self._kept

    def done(self, value: int, piece: _Piece) -> bool:
        """Tell whether nobody needs a value after the piece."""
        return value not in self._kept and self._last.get(value, piece) is piece

    def donatable(self, value: int, piece: _Piece) -> bool:
        """Tell whether the piece may overwrite a value that it takes."""
        return self.done(value, piece) and value not in self._lent


def _program(members: Sequence[_Piece], uses: _Uses) -> Program:
    """Return the program of equal pieces: outputs that any needs, donations that all allow."""
    first = members[0]
    inputs = range(len(first.takes))
    outputs = [
        n
        for n in range(len(inputs), len(first.values))
        if any(uses.needed(piece.values[n]) for piece in members)
    ]
    allowed = [n for n in inputs if all(uses.donatable(p.values[n], p) for p in members)]
    donated = _taken_over(first.value_types, allowed, outputs)
    return Program(first.types, first.nodes, tuple(outputs), donated)


def _taken_over(
    types: Sequence[ArrayType], inputs: Iterable[int], outputs: Iterable[int]
) -> tuple[int, ...]:
    """Return the inputs whose memory an output of the same type can take over."""
    free = Counter(types[n] for n in outputs)
    donated = []
    for n in inputs:
        if free[types[n]] > 0:
            free[types[n]] -= 1
            donated.append(n)
    return tuple(donated)


def _part(piece: _Piece, program: Program, uses: _Uses) -> Part:
    gives = tuple(piece.values[n] for n in program.outputs)
    drops = tuple(v for v in (*piece.takes, *gives) if uses.done(v, piece))
    return Part(program, tuple(piece.takes), gives, drops)


def _own_arrays(graph: Graph) -> tuple[tuple[int, ...], list[Part]]:
    """Give every output an array of its own: copies of inputs and of what is an output twice."""
    slots: list[int] = []
    copied: list[int] = []
    for value in graph.program.outputs:
        if value < len(graph.program.inputs) or value in slots:
            slots.append(len(graph.types) + len(copied))
            copied.append(value)
        else:
            slots.append(value)
    if not copied:
        return tuple(slots), []
    given = range(len(graph.types), len(graph.types) + len(copied))
    types = tuple(graph.types[v] for v in copied)
    copy = Program(types, (), tuple(range(len(copied))))
    drops = tuple(v for v in dict.fromkeys(copied) if v < len(graph.program.inputs))
    return tuple(slots), [Part(copy, tuple(copied), tuple(given), drops)]
