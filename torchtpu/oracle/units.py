"""A step as units: the pieces of its calls with the buffers that they read and make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchtpu.oracle.programs import Piece, Programs
from torchtpu.perf_model.trace import Call, StepTrace

_GAP = 6  # calls between two that fall apart which go with them


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A piece of a call; inputs and outputs are buffers. `piece` is None without StableHLO."""

    call: int
    piece: Piece | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Units in order; `apart`: those of a program over lists of tensors, in independent pieces."""

    units: tuple[Unit, ...]
    apart: bool


def whole(trace: StepTrace, programs: Programs) -> list[Unit]:
    """Return the units of a step, a call in one piece wherever it has StableHLO."""
    return [unit for calls in _calls(trace, programs) for unit in calls[1]]


def stretches(trace: StepTrace, programs: Programs) -> list[Stretch]:
    """Return the units of a step in stretches of calls that fall apart and of those that do not."""
    calls = _calls(trace, programs)
    apart = [len(pieces) > 1 for pieces, _ in calls]
    _bridge(apart, [_transforms(call) for call in trace.calls])
    found: list[Stretch] = []
    start = 0
    for stop in range(1, len(calls) + 1):
        if stop == len(calls) or apart[stop] != apart[start]:
            units = tuple(u for pieces, _ in calls[start:stop] for u in pieces)
            found.append(Stretch(units=units, apart=apart[start]))
            start = stop
    return found


def _bridge(apart: list[bool], transforms: Sequence[bool]) -> None:
    """Let a few calls between two that fall apart go with them; fills and numbers do not count."""
    last = -1
    for position in [n for n, is_apart in enumerate(apart) if is_apart]:
        if last >= 0 and sum(transforms[last + 1 : position]) <= _GAP:
            apart[last:position] = [True] * (position - last)
        last = position


def _transforms(call: Call) -> bool:
    """Whether a call makes tensors of tensors."""
    types = call.graph.types
    return all(
        any(types[v].elements > 1 for v in values)
        for values in (call.graph.inputs, call.graph.outputs)
    )


def _calls(trace: StepTrace, programs: Programs) -> list[tuple[list[Unit], list[Unit]]]:
    """Return, for each call, its pieces and itself as one."""
    return [_of(n, call, programs) for n, call in enumerate(trace.calls)]


def _of(number: int, call: Call, programs: Programs) -> tuple[list[Unit], list[Unit]]:
    pieces = programs.pieces(call.graph)
    one = Unit(
        call=number,
        piece=programs.whole(call.graph),
        inputs=call.inputs,
        outputs=call.outputs,
    )
    apart = [
        Unit(
            call=number,
            piece=piece,
            inputs=tuple(call.inputs[n] for n in piece.inputs),
            outputs=tuple(call.outputs[n] for n in piece.outputs),
        )
        for piece in pieces
    ]
    return apart if len(pieces) > 1 else [one], [one]


def components(units: Sequence[Unit], connects: Callable[[int], bool]) -> list[tuple[Unit, ...]]:
    """Return units that hand each other buffers for which `connects` holds, in order of the first.

    Numbers connect nothing: a learning rate would tie all parameters to each other.
    """
    parent = list(range(len(units)))

    def find(n: int) -> int:
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    maker: dict[int, int] = {}
    for number, unit in enumerate(units):
        for buffer in unit.inputs:
            if buffer in maker and connects(buffer):
                parent[find(number)] = find(maker[buffer])
        maker.update(dict.fromkeys(unit.outputs, number))
    found: dict[int, list[Unit]] = {}
    for number, unit in enumerate(units):
        found.setdefault(find(number), []).append(unit)
    return [tuple(part) for part in found.values()]
