"""Joining the programs of many calls into one, whose outputs are the values still wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torchtpu.program import ArrayType, Node, Program, renumbered

# Where the inputs of a call come from: a value's number, or -1 - n for the n-th input of the whole.
Wiring = tuple[int, ...]


def join(
    calls: Sequence[tuple[Program, Wiring]],
    live: Sequence[int],
    outputs: Sequence[ArrayType],
    overwritten: Iterable[int],
) -> Program:
    """Join calls in order; outputs of the whole are the `live` values.

    Values are the outputs of all calls, numbered through. outputs: the types of the live values.
    overwritten: inputs of the whole that are dead afterwards; those with an output of their type
    are donated.
    """
    inputs = _input_types(calls)
    nodes: list[Node] = []
    count = len(inputs)
    values: list[int] = []  # number in the whole program of each value
    for program, wiring in calls:
        numbers = [values[w] if w >= 0 else -1 - w for w in wiring]
        for node in program.nodes:
            nodes.append(renumbered(node, numbers))
            numbers.extend(range(count, count + node.outputs))
            count += node.outputs
        values.extend(numbers[o] for o in program.outputs)
    free = Counter(outputs)
    donated = []
    for i in sorted(overwritten):
        if free[inputs[i]] > 0:
            free[inputs[i]] -= 1
            donated.append(i)
    return Program(tuple(inputs), tuple(nodes), tuple(values[i] for i in live), tuple(donated))


def _input_types(calls: Iterable[tuple[Program, Wiring]]) -> list[ArrayType]:
    types: dict[int, ArrayType] = {}
    for program, wiring in calls:
        for wire, type_ in zip(wiring, program.inputs, strict=True):
            if wire < 0:
                types[-1 - wire] = type_
    return [types[i] for i in range(len(types))]
