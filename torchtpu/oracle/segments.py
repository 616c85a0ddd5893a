"""A step as segments: what the TPU compiler gets at a time, equal ones only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from torchtpu.oracle import units as parts
from torchtpu.oracle.programs import Programs
from torchtpu.oracle.units import Unit
from torchtpu.partition.cuts import Cutter, Limits
from torchtpu.perf_model.network.collective_ops import OPCODES
from torchtpu.perf_model.program import Graph, TensorType
from torchtpu.perf_model.trace import StepTrace

# In calls of mostly one aten op; measured with libtpu 0.0.42 on two cores: 20 to 60 ms for each.
_LIMITS = Limits(whole=240, largest_part=240, smallest_part=12, saved=24)
_WHOLE_OPS = 4000


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Units that are compiled together.

    inputs, outputs: buffers that it takes from outside, and makes for later or for after the step.
    dying: positions of inputs that nobody needs afterwards. key: equal for segments that are one
    and the same program.
    """

    units: tuple[Unit, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dying: tuple[int, ...]
    key: object
    communicates: bool  # with other devices

    @property
    def compiles(self) -> bool:
        """Whether there is StableHLO of all of it."""
        return all(unit.piece is not None for unit in self.units)


def segments(trace: StepTrace, programs: Programs) -> list[Segment]:
    """Return the segments of a step in the order in which they run; a short step is one."""
    needs = _Needs(trace)
    return _placed([s for s in _sequences(trace, programs, needs) if s], needs)


def calls(trace: StepTrace, programs: Programs) -> list[Segment]:
    """Return every call of a step as a segment of its own."""
    return _placed([[unit] for unit in parts.whole(trace, programs)], _Needs(trace))


def _placed(sequences: Sequence[Sequence[Unit]], needs: _Needs) -> list[Segment]:
    """Make segments of units; those that run the same get outputs that any needs, as one program,
    and donate what all may.
    """
    for number, units in enumerate(sequences):
        needs.note(number, units)
    bodies = [needs.body(number, units) for number, units in enumerate(sequences)]
    outputs: dict[object, set[int]] = {}
    dying: dict[object, set[int]] = {}
    for body in bodies:
        outputs.setdefault(body.key, set()).update(body.outputs)
        dying.setdefault(body.key, set(body.dying)).intersection_update(body.dying)
    return [needs.segment(b, sorted(outputs[b.key]), sorted(dying[b.key])) for b in bodies]


def communicates(graph: Graph) -> bool:
    """Tell whether a program has collectives."""
    return any(op.opcode in OPCODES or any(map(communicates, op.bodies)) for op in graph.ops)


def _sequences(trace: StepTrace, programs: Programs, needs: _Needs) -> list[Sequence[Unit]]:
    ops = sum(call.graph.op_count for call in trace.calls)
    known = all(programs.pieces(call.graph) for call in trace.calls)
    if known and len(trace.calls) <= _LIMITS.whole and ops <= _WHOLE_OPS:
        return [parts.whole(trace, programs)]
    found: list[Sequence[Unit]] = []
    for stretch in parts.stretches(trace, programs):
        if stretch.apart:
            found += parts.components(stretch.units, needs.is_tensor)
        else:
            for known_units in _known(stretch.units):
                found += _cut(known_units, needs)
    return found


def _known(units: Sequence[Unit]) -> list[Sequence[Unit]]:
    """Units without StableHLO stand alone."""
    found: list[list[Unit]] = [[]]
    for unit in units:
        if unit.piece is None:
            found += [[unit], []]
        else:
            found[-1].append(unit)
    return [part for part in found if part]


def _cut(units: Sequence[Unit], needs: _Needs) -> list[Sequence[Unit]]:
    if len(units) <= _LIMITS.smallest_part or units[0].piece is None:
        return [units]
    cuts = Cutter(_Row(units, needs), _LIMITS).cuts(0, len(units))
    return [units[start:stop] for start, stop in pairwise((*cuts, len(units)))]


class _Row:
    """Units as what partition's cutter asks of a program's nodes."""

    def __init__(self, units: Sequence[Unit], needs: _Needs) -> None:
        numbers: dict[str, int] = {}
        signatures = [u.piece.signature if u.piece else "" for u in units]
        self.signatures = np.array(
            [numbers.setdefault(s, len(numbers)) for s in signatures], np.int64
        )
        self._units, self._needs = units, needs

    def crossing(self) -> np.ndarray[Any, Any]:
        """Count, for a cut before each unit, the tensors that only that cut would make outputs."""
        last = {b: n for n, unit in enumerate(self._units) for b in unit.inputs}
        change = np.zeros(len(self._units) + 2, np.int64)
        for number, unit in enumerate(self._units):
            for buffer in unit.outputs:
                if buffer in last and not self._needs.after(buffer, self._units[-1].call):
                    change[number + 1] += 1
                    change[last[buffer] + 1] -= 1
        return np.cumsum(change)[: len(self._units) + 1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Body:
    """Units with their buffers numbered: inputs first, then what each unit makes."""

    units: tuple[Unit, ...]
    inputs: tuple[int, ...]
    values: tuple[int, ...]  # buffers by number
    outputs: tuple[int, ...]  # numbers of those that somebody needs later
    dying: tuple[int, ...]
    key: object  # equal for bodies that compute the same


class _Needs:
    """Who needs a buffer of the step, and what type it has."""

    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace
        self._kept = trace.live_after
        self._last: dict[int, int] = {}  # call that reads a buffer last
        self._last_segment: dict[int, int] = {}
        self._types: dict[int, TensorType] = {}
        for number, call in enumerate(trace.calls):
            self._last.update(dict.fromkeys(call.inputs, number))
            graph = call.graph
            for buffers, values in ((call.inputs, graph.inputs), (call.outputs, graph.outputs)):
                self._types.update(
                    (b, graph.types[v]) for b, v in zip(buffers, values, strict=True)
                )

    def is_tensor(self, buffer: int) -> bool:
        """Tell whether a buffer is more than one number."""
        return self._types[buffer].elements > 1

    def after(self, buffer: int, call: int) -> bool:
        """Tell whether a buffer is needed after a call, or after the step."""
        return buffer in self._kept or self._last.get(buffer, -1) > call

    def note(self, number: int, units: Sequence[Unit]) -> None:
        """Take down which segment reads a buffer last."""
        self._last_segment.update((b, number) for unit in units for b in unit.inputs)

    def body(self, number: int, units: Sequence[Unit]) -> _Body:
        """Return what some units are, the `number`th of the step."""
        made = {b for unit in units for b in unit.outputs}
        inputs = tuple(dict.fromkeys(b for u in units for b in u.inputs if b not in made))
        names = {b: n for n, b in enumerate(inputs)}
        rows = []
        for unit in units:
            signature = unit.piece.signature if unit.piece else f"call {unit.call}"
            takes = tuple(names[b] for b in unit.inputs)
            names.update({b: len(names) + n for n, b in enumerate(unit.outputs)})
            rows.append((signature, takes, tuple(names[b] for b in unit.outputs)))
        types = tuple(self._types[b] for b in inputs)
        return _Body(
            units=tuple(units),
            inputs=inputs,
            values=tuple(names),
            outputs=tuple(names[b] for b in made if self._needed(b, number)),
            dying=tuple(
                n for n, b in enumerate(inputs) if self.is_tensor(b) and not self._needed(b, number)
            ),
            key=(tuple(rows), types),
        )

    def segment(self, body: _Body, outputs: Sequence[int], dying: Sequence[int]) -> Segment:
        """Return the segment of a body with these outputs, and these inputs donated."""
        graphs = [self._trace.calls[u.call].graph for u in body.units]
        return Segment(
            units=body.units,
            inputs=body.inputs,
            outputs=tuple(body.values[n] for n in outputs),
            dying=tuple(dying),
            key=(body.key, tuple(outputs), tuple(dying)),
            communicates=any(map(communicates, graphs)),
        )

    def _needed(self, buffer: int, number: int) -> bool:
        """Whether a later segment takes a buffer, or it is alive after the step."""
        return buffer in self._kept or self._last_segment.get(buffer, -1) > number
