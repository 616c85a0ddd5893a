"""The program as a graph: who reads what, the type of every value, and signatures of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from torchtpu.program import ArrayType, Node, Program, Ref, renumbered, substituted

Known = dict[Any, tuple[int, tuple[ArrayType, ...]]]  # call on types: its number, types of outputs


class Graph:
    """A program's nodes with what splitting asks of them; made once, read only."""

    def __init__(self, program: Program, known: Known | None = None) -> None:
        self.program = program
        self.nodes = program.nodes
        self.reads = [tuple(references((n.args, n.kwargs))) for n in self.nodes]
        self.first: list[int] = []  # per node: the number of its first output
        self.types: list[ArrayType] = list(program.inputs)
        signatures: list[int] = []
        self.known: Known = {} if known is None else known
        for node in self.nodes:
            args, kwargs = substituted((node.args, node.kwargs), self.types.__getitem__)
            key = (node.op, node.fn, args, kwargs, node.outputs)
            found = self.known.get(key)
            if found is None:
                found = self.known[key] = len(self.known), _output_types(node, self.types)
            signatures.append(found[0])
            self.first.append(len(self.types))
            self.types.extend(found[1])
        self.signatures = np.array(signatures, np.int64)  # equal: same call on the same types

    def made(self, node: int) -> range:
        """Return the numbers of a node's outputs."""
        return range(self.first[node], self.first[node] + self.nodes[node].outputs)

    def crossing(self) -> np.ndarray[Any, Any]:
        """Count, for a cut before each node, the values that only that cut would make outputs."""
        last: dict[int, int] = {}
        for number, reads in enumerate(self.reads):
            last.update(dict.fromkeys(reads, number))
        change = np.zeros(len(self.nodes) + 2, np.int64)
        outputs = set(self.program.outputs)
        for number in range(len(self.nodes)):
            for value in self.made(number):
                if value in last and value not in outputs:
                    change[number + 1] += 1
                    change[last[value] + 1] -= 1
        return np.cumsum(change)[: len(self.nodes) + 1]


def references(argument: Any) -> Iterator[int]:
    """Yield the numbers of the values in an argument, in order."""
    if type(argument) is Ref:
        yield argument.index
    elif type(argument) is tuple:
        for item in argument:
            yield from references(item)


def _output_types(node: Node, types: Sequence[ArrayType]) -> tuple[ArrayType, ...]:
    import jax

    inputs = tuple(dict.fromkeys(references((node.args, node.kwargs))))
    shapes = [jax.ShapeDtypeStruct(types[i].shape, types[i].dtype) for i in inputs]
    alone = renumbered(node, {i: n for n, i in enumerate(inputs)})
    given = range(len(inputs), len(inputs) + node.outputs)
    program = Program(tuple(types[i] for i in inputs), (alone,), tuple(given))
    with jax.enable_x64(True):
        results = jax.eval_shape(lambda *values: program(*values), *shapes)
    return tuple(ArrayType(tuple(r.shape), np.dtype(r.dtype)) for r in results)
