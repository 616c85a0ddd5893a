"""Lists of numbers that turn from part to part, so that each takes its elements from the front.

Equal parts then hold equal positions: each takes the list, and gives it turned by what it used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torchtpu.partition.graph import references
from torchtpu.program import Node, Program, Ref, renumbered


@dataclass(frozen=True, slots=True)
class Element:
    """A position of an input that is a list of numbers."""

    array: int
    position: int


@dataclass(frozen=True, slots=True)
class Elements:
    """A program whose inputs from `inputs` on are elements of inputs before."""

    program: Program
    inputs: int
    elements: tuple[Element, ...]

    def turned(self, cuts: Sequence[int]) -> tuple[Program, list[int]]:
        """Return a program without the elements among its inputs, and its cuts."""
        if not self.elements:
            return self.program, list(cuts)
        return _Turner(self).run(cuts)


def front(array: Any, count: int) -> Any:
    """Return the first elements of a list as lists of one, and the list turned by their count."""
    import jax.numpy as jnp

    return (*(array[i : i + 1] for i in range(count)), jnp.roll(array, -count))


class _Turner:
    def __init__(self, whole: Elements) -> None:
        self._whole = whole
        self._numbers = {i: i for i in range(whole.inputs)}
        self._next = whole.inputs
        self._nodes: list[Node] = []
        self._lists = {e.array: (e.array, 0) for e in whole.elements}  # value, turned by

    def run(self, cuts: Sequence[int]) -> tuple[Program, list[int]]:
        whole, program = self._whole, self._whole.program
        places = []
        old = len(program.inputs)
        for start, stop in pairwise((*cuts, len(program.nodes))):
            places.append(len(self._nodes))
            nodes = program.nodes[start:stop]
            reads = {v for n in nodes for v in references((n.args, n.kwargs))}
            self._take([v for v in sorted(reads) if whole.inputs <= v < len(program.inputs)])
            for node in nodes:
                made = self._add(renumbered(node, self._numbers))
                self._numbers.update(zip(range(old, old + node.outputs), made, strict=True))
                old += node.outputs
        inputs = program.inputs[: whole.inputs]
        outputs = tuple(self._numbers[v] for v in program.outputs)
        return Program(inputs, tuple(self._nodes), outputs, program.donated), places

    def _take(self, values: Sequence[int]) -> None:
        """Add what takes these elements from their lists."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for value in values:
            element = self._whole.elements[value - self._whole.inputs]
            wanted.setdefault(element.array, []).append((element.position, value))
        for array, elements in wanted.items():
            current, turned = self._lists[array]
            size = self._whole.program.inputs[array].shape[0]
            places = [(position - turned) % size for position, _ in elements]
            count = max(places) + 1
            made = self._add(Node("view", front, (Ref(current), count), (), count + 1))
            for place, (_, value) in zip(places, elements, strict=True):
                self._numbers[value] = made[place]
            self._lists[array] = made[count], (turned + count) % size

    def _add(self, node: Node) -> range:
        made = range(self._next, self._next + node.outputs)
        self._next += node.outputs
        self._nodes.append(node)
        return made
