"""Capturing: calls are not run but gathered into one program over named inputs.

torch.compile captures a graph once and runs the program from then on; the whole-step trainer does
the same with a training step. Recording in fused mode differs: it runs what it records each time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from torchtpu import executor
from torchtpu.eager import modes
from torchtpu.eager.joined import Wiring, join
from torchtpu.errors import TpuError
from torchtpu.private import torch as private
from torchtpu.program import ArrayType, Node, Program, Ref
from torchtpu.storage import Buffer, Deferred


class CannotCapture(TpuError):
    """A program would depend on something that is known only when it runs."""


class Captured(Deferred):
    """Stands in a Buffer for a value of the program being captured."""

    __slots__ = ("capture", "wire")

    def __init__(self, capture: Capture, wire: int) -> None:
        self.capture = capture
        self.wire = wire  # a value's number, or -1 - n for the n-th input

    def materialize(self) -> None:
        """Refuse: there is no value yet."""
        raise CannotCapture(
            "[capture] the value of a tensor was asked for while its program is being made: "
            "expected ops on tensors only, got .item(), bool(), .cpu() or an op whose result shape "
            "depends on values"
        )


class Given(NamedTuple):
    """An input that the caller of the captured program gives: the n-th placeholder."""

    number: int


class Constant(NamedTuple):
    """An input with contents of its own, the same in every run: a tensor's, or a number's."""

    array: Any


class Keys(NamedTuple):
    """An input of shape [number, 4]: the next random keys of a generator (None: the default)."""

    generator: private.Generator | None
    number: int


Source = Given | Constant | Keys


class Traced(NamedTuple):
    """A captured program and where its inputs come from."""

    program: Program
    sources: tuple[Source, ...]


class Capture:
    """A mode in which launches become nodes; those of unrelated threads are let through."""

    def __init__(self, outer: Any) -> None:
        self.adopt: Callable[[Any], Any] | None = None  # finds the placeholder of an array
        self._outer = outer
        self._thread = threading.get_ident()
        self._calls: list[tuple[Program | None, Wiring]] = []  # None: a random key
        self._types: list[ArrayType] = []  # of the values
        self._inputs: list[Source | private.Generator | None] = []
        self._known: dict[int, tuple[Any, int]] = {}  # id of an array -> it and its wire
        self._key_counts: dict[int, int] = {}  # wire of a generator's keys -> how many
        self._targets: list[weakref.ref[Buffer]] = []
        self._generators: dict[int, int] = {}  # id of a generator -> wire of its keys

    def is_here(self) -> bool:
        """Tell whether what this thread launches belongs to the program."""
        return threading.get_ident() == self._thread or _in_backward()

    def placeholder(self, buffer: Buffer, number: int) -> Captured:
        """Let the contents of a buffer stand for the n-th input that the caller will give."""
        made = buffer.array = Captured(self, self._input(Given(number)))
        return made

    def launch(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Add a prepared call."""
        if not self.is_here():
            self._outer.launch(call, arrays, targets)
            return
        tensors = len(arrays) - call.extra_inputs
        wiring = tuple(
            self._wire(array, is_number=position >= tensors)
            for position, array in enumerate(arrays)
        )
        first = self.add(call.program, wiring, [t.layout.type for t in targets])
        for number, target in enumerate(targets, first):
            if self.adopt is not None and target.array is not None:
                self._adopted(target.array)
            target.array = Captured(self, number)
            self._targets.append(weakref.ref(target))

    launch_whole = launch

    def survivors(self) -> list[Buffer]:
        """Return the buffers of captured values that somebody still holds, in order."""
        found = [b for reference in self._targets if (b := reference()) is not None]
        alive = {id(b): b for b in found if type(b.array) is Captured}
        return list(alive.values())

    def _adopted(self, array: Any) -> Any:
        if self.adopt is None or type(array) is Captured:
            return array
        found = self.adopt(array)
        return array if found is None else found

    def add(self, program: Program | None, wiring: Wiring, outputs: Sequence[ArrayType]) -> int:
        """Add a program on wires; return the number of its first output."""
        self._calls.append((program, wiring))
        self._types.extend(outputs)
        return len(self._types) - len(outputs)

    def random_key(self, generator: private.Generator | None) -> Captured:
        """Stand for the next key of a generator, which is drawn when the program runs."""
        wire = self._generators.get(id(generator))
        if wire is None:
            wire = self._generators[id(generator)] = self._input(generator)
            self._key_counts[wire] = 0
        row = self._key_counts[wire]
        self._key_counts[wire] = row + 1
        return Captured(self, self.add(None, (wire, row), [_KEY]))

    def flush(self) -> None:
        """Launch nothing: there are no values yet."""

    def enter(self) -> None:
        """Become the current mode."""

    leave = enter

    def _input(self, source: Any) -> int:
        self._inputs.append(source)
        return -len(self._inputs)

    def _wire(self, array: Any, *, is_number: bool) -> int:
        if not is_number and id(array) not in self._known:
            array = self._adopted(array)
        if type(array) is Captured:
            if array.capture is not self:
                raise CannotCapture("[capture] expected a tensor of this program, got another's")
            return array.wire
        if is_number:  # another capture of the same text may have another value
            return self._input(Constant(array))
        if id(array) not in self._known:
            self._known[id(array)] = array, self._input(Constant(array))
        return self._known[id(array)][1]

    def places(self) -> dict[int, int]:
        """Return the wires of the inputs that are used, with their positions in the program."""
        places: dict[int, int] = {}
        for program, wiring in self._calls:
            for wire in wiring if program is not None else wiring[:1]:
                if wire < 0:
                    places.setdefault(wire, len(places))
        return places

    def trace(self, outputs: Sequence[int], overwritten: Sequence[int]) -> Traced:
        """Return the program whose results are these wires.

        overwritten: wires of inputs whose memory the results may take over.
        """
        places = self.places()
        calls = []
        for program, wiring in self._calls:
            if program is None:
                wiring, row = wiring[:1], wiring[1]
                program = _key_row(self._key_counts[wiring[0]], row)
            calls.append((program, tuple(w if w >= 0 else -1 - places[w] for w in wiring)))
        members = {program.ranks for program, _ in calls if program.ranks}
        if len(members) > 1:
            raise CannotCapture(f"[capture] expected collectives of one group, got {members}")
        types = [self._types[w] for w in outputs]
        whole = join(calls, outputs, types, [places[w] for w in overwritten if w in places])
        sources = tuple(self._source(wire) for wire in places)
        return Traced(replace(whole, ranks=members.pop() if members else ()), sources)

    def _source(self, wire: int) -> Source:
        source = self._inputs[-1 - wire]
        if wire in self._key_counts:
            return Keys(source, self._key_counts[wire])  # type: ignore[arg-type]  # a generator
        return source  # type: ignore[return-value]  # a Source


_KEY = ArrayType((4,), np.dtype(np.uint32))


def _key_row(count: int, row: int) -> Program:
    keys = ArrayType((count, 4), _KEY.dtype)
    return Program((keys,), (Node("random_key", _row, (Ref(0), row), (), 1),), (1,))


def _row(keys: Any, row: int) -> Any:
    return keys[row]


def _in_backward() -> bool:
    return private.current_graph_task_id() != -1


@contextmanager
def capturing() -> Iterator[Capture]:
    """Gather launches inside a `with` block instead of running them."""
    modes.current.flush()
    outer = modes.current
    capture = Capture(outer)
    modes.current = capture
    try:
        with executor.current().target.memory.suspended():
            yield capture
    finally:
        modes.current = outer
