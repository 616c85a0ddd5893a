"""How often a while loop runs, read from its condition `counter < limit` and its step `counter +
constant`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu.perf_model.program import Graph, Op

_CONVERTS = frozenset({"convert", "reshape", "optimization_barrier"})


def trip_count(bodies: Sequence[Graph], initial: Sequence[int | None]) -> int | None:
    """Iterations of a while loop, given its (condition, body) graphs; None if not constant.

    initial: the start value of each loop variable, None where it is no integer constant.
    """
    if len(bodies) != 2:
        return None
    condition, body = bodies
    found = _comparison(condition)
    if found is None:
        return None
    position, limit, direction = found
    start = initial[position] if position < len(initial) else None
    step = _step(body, position)
    if start is None or not step:
        return None
    return _iterations(start, limit, step, direction)


def _iterations(start: int, limit: int, step: int, direction: str) -> int | None:
    if direction in {"LT", "NE"} and step > 0:
        return max(0, -(-(limit - start) // step))
    if direction == "LE" and step > 0:
        return max(0, (limit - start) // step + 1)
    if direction in {"GT", "NE"} and step < 0:
        return max(0, -((limit - start) // -step))
    if direction == "GE" and step < 0:
        return max(0, (start - limit) // -step + 1)
    return None


def _producers(graph: Graph) -> dict[int, Op]:
    return {result: op for op in graph.ops for result in op.results}


def _through(value: int, producers: dict[int, Op]) -> int:
    """The value behind converts and reshapes."""
    while (op := producers.get(value)) is not None and op.opcode in _CONVERTS:
        value = op.operands[0]
    return value


def _constant(value: int, producers: dict[int, Op]) -> int | None:
    op = producers.get(_through(value, producers))
    found = op.attrs.get("value") if op is not None and op.opcode == "constant" else None
    return found if isinstance(found, int) else None


def _comparison(condition: Graph) -> tuple[int, int, str] | None:
    """(variable, limit, direction) of a condition that compares a variable to a constant."""
    producers = _producers(condition)
    compare = (
        producers.get(_through(condition.outputs[0], producers)) if condition.outputs else None
    )
    if compare is None or compare.opcode != "compare":
        return None
    left, right = (_through(v, producers) for v in compare.operands)
    direction = compare.text("comparison_direction")
    limit = _constant(right, producers)
    if limit is not None and left in condition.inputs:
        return condition.inputs.index(left), limit, direction
    flipped = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    limit = _constant(left, producers)
    if limit is not None and right in condition.inputs:
        return condition.inputs.index(right), limit, flipped
    return None


def _step(body: Graph, position: int) -> int | None:
    """The constant that the body adds to loop variable `position`."""
    producers = _producers(body)
    op = producers.get(_through(body.outputs[position], producers))
    if op is None or op.opcode not in {"add", "subtract"}:
        return None
    variable = body.inputs[position]
    left, right = (_through(v, producers) for v in op.operands)
    sign = -1 if op.opcode == "subtract" else 1
    if left == variable and (step := _constant(right, producers)) is not None:
        return sign * step
    if right == variable and sign == 1:
        return _constant(left, producers)
    return None
