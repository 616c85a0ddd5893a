"""Fused mode: calls are recorded and run later as one program of many ops.

A recording is a path in a trie: each edge is a call and where its inputs come from, so a sequence
seen before is recognised as it is recorded, without hashing the whole program. A flush runs the
program of the path; its outputs are the values whose buffers are still alive.

Where a recording is cut depends only on the program's text: at reads of values, at the end of
`optimizer.step()`, where code with gradients follows a stretch without (a forward after a backward
or an evaluation), where a long loop without any of these starts again, at `MAX_CALLS`, and where
the recording alone holds more than `MAX_ELEMENTS` that the program has dropped.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchtpu import executor
from torchtpu.eager import blame, one_by_one, out_of_memory
from torchtpu.eager.joined import Wiring, join
from torchtpu.generator import device_keys
from torchtpu.partition import Plan, Run, partition
from torchtpu.sim.memory import OutOfHBM
from torchtpu.storage import Buffer, Deferred, launch_lock

LOOP_CALLS = 256  # a first call that comes again after so many is taken for a loop's next turn
NO_GRAD_CALLS = 8  # so many without gradients are a backward or an evaluation, not an op of a model
MAX_CALLS = 8192  # a bound on what is held back
MAX_ELEMENTS = 1 << 28  # 1 GiB of float32


class Pending(Deferred):
    """Stands in a Buffer for an array that a recorded call will make."""

    __slots__ = ("index", "recording", "result")

    recording: Recording
    index: int
    result: Any  # the array, once the recording has run

    def materialize(self) -> None:
        """Run the recording that this belongs to."""
        with launch_lock:
            self.recording.flush()


class _State:
    """A point in the trie: the calls that lead here, and the programs compiled for this path."""

    __slots__ = ("call", "line", "next", "parent", "programs", "wiring")

    def __init__(self, parent: _State | None, call: Any, wiring: Wiring) -> None:
        self.parent = parent
        self.call = call
        self.wiring = wiring  # per input: a value's number, or -1 - n for the n-th outside array
        self.next: dict[Any, _State] = {}
        self.programs: dict[Any, Any] = {}
        self.line = blame.user_line() if parent else ""  # where this path was first recorded

    def path(self) -> list[_State]:
        states: list[_State] = []
        state: _State | None = self
        while state is not None and state.parent is not None:
            states.append(state)
            state = state.parent
        return states[::-1]


MAX_STATES = 1 << 18  # of the trie; sequences that never come again are forgotten


class _Trie:
    """The recorded sequences of the process."""

    def __init__(self) -> None:
        self.root = _State(None, None, ())
        self.states = 0

    def grow(self, state: _State, edge: tuple[Any, Wiring]) -> _State:
        """Return the state after a call that never came after this sequence."""
        made = state.next[edge] = _State(state, *edge)
        self.states += 1
        return made

    def start(self) -> _State:
        """Return the state of an empty recording."""
        if self.states > MAX_STATES:
            self.forget()
        return self.root

    def forget(self) -> None:
        """Start anew; a recording that is under way keeps its path, and no program."""
        forgotten = [self.root]
        while forgotten:
            state = forgotten.pop()
            forgotten += state.next.values()
            state.next, state.programs = {}, {}
        self.root, self.states = _State(None, None, ()), 0


# References to what nobody but a list holds, in a loop over the list.
_ALONE = next(getrefcount(held) for _, held in enumerate([object()]))
_trie = _Trie()
executor.holders.append(_trie.forget)


class Recording:
    """Calls since the last flush: where we are in the trie, outside arrays, and who holds what."""

    def __init__(self) -> None:
        self.done = False
        self.first: Any = None
        self.state = _trie.start()
        self.length = 0
        self.arrays: list[Any] = []
        self.elements = 0  # of these arrays
        self.look_at = MAX_ELEMENTS  # so many elements: whose are they?
        self.known: dict[int, int] = {}  # id of an outside array -> its number
        self.overwritten: set[int] = set()  # outside arrays whose buffers have new contents
        self.holders: list[weakref.ref[Buffer]] = []  # per value: the buffer that it was made for

    def add(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Record a call; its targets get Pendings."""
        wiring: list[int] = []
        known, outside = self.known, self.arrays
        extra = call.extra_inputs
        for array in arrays[:-extra] if extra else arrays:
            if type(array) is Pending:
                if array.recording is self:
                    wiring.append(array.index)
                    continue
                array = array.result  # of a recording that was cut before this call
            number = known.get(id(array))
            if number is None:
                self.elements += call.sizes[len(wiring)]
                outside.append(array)
                number = known[id(array)] = len(outside)
            wiring.append(-number)
        for array in arrays[-extra:] if extra else ():  # numbers are never told apart by value
            outside.append(array)
            wiring.append(-len(outside))
        for position in call.program.donated:
            if wiring[position] < 0:
                self.overwritten.add(-1 - wiring[position])
        edge = call, tuple(wiring)
        self.state = self.state.next.get(edge) or _trie.grow(self.state, edge)
        self.first = self.first or call
        self.length += 1
        holders = self.holders
        for target in targets:
            target.array = pending = Pending()
            pending.recording, pending.index, pending.result = self, len(holders), None
            holders.append(weakref.ref(target))
        if self.length >= MAX_CALLS or (self.elements > self.look_at and self._is_heavy()):
            self.flush()

    def _is_heavy(self) -> bool:
        """Tell whether too much of what goes in is held by nobody else, nor overwritten."""
        dropped = 0
        for number, array in enumerate(self.arrays):
            if getrefcount(array) <= _ALONE and number not in self.overwritten:
                dropped += array.size
        self.look_at = self.elements + MAX_ELEMENTS // 4
        return dropped > MAX_ELEMENTS

    def flush(self) -> None:
        """Run what was recorded; later calls start a new recording."""
        if self.done:
            return
        self.done = True
        executor.current().target.recorded(self.length)
        live, buffers = self._wanted()
        if not live:
            return
        arrays, holders = self.arrays, self.holders
        self.arrays, self.holders, self.known = [], [], {}
        try:
            _hand_out(buffers, self._compiled(live, buffers)(arrays))
        except Exception as error:
            steps = [(s.call, s.wiring, s.line) for s in self.state.path()]
            values = one_by_one.run(steps, arrays, error)
            _hand_out(buffers, [values[index] for index in live], repr(error))
            if any(value is None for value in values):
                if isinstance(error, OutOfHBM):  # before anything has run
                    out_of_memory.undo(error, steps, arrays, holders)
                raise
        except BaseException as interrupt:
            _hand_out(buffers, [None] * len(live), repr(interrupt))
            raise

    def _wanted(self) -> tuple[list[int], list[Buffer]]:
        """The values that somebody still holds, and the buffers that they belong to."""
        live, buffers = [], []
        for index, reference in enumerate(self.holders):
            buffer = reference()
            if buffer is not None:
                held = buffer.array
                if type(held) is Pending and held.index == index and held.recording is self:
                    live.append(index)
                    buffers.append(buffer)
        return live, buffers

    def _compiled(self, live: list[int], buffers: list[Buffer]) -> Any:
        key = (tuple(live), frozenset(self.overwritten))
        run = self.state.programs.get(key)
        if run is None:
            types = [b.layout.type for b in buffers]
            calls = [(s.call.program, s.wiring) for s in self.state.path()]
            program = join(calls, live, types, self.overwritten)
            run = self.state.programs[key] = _compiled(partition(program))
        return run


def _compiled(plan: Plan) -> Run:
    """Compile the parts of a plan, those that differ in parallel."""
    compiler = executor.current()
    if len(plan.parts) > 1:
        compiler.compile_many(dict.fromkeys(part.program for part in plan.parts))
    return plan.bind(lambda program: compiler.executable(program).run)


def _hand_out(buffers: Sequence[Buffer], results: Sequence[Any], failure: str = "") -> None:
    for buffer, result in zip(buffers, results, strict=True):
        buffer.array.result = result  # for calls that have the Pending in hand
        buffer.array = result
        if result is None:
            buffer.freed = f"the program that computes it failed: {failure}"


class Fused:
    """Calls are recorded; a recording is cut at the places that the module's docstring names."""

    def __init__(self) -> None:
        self._recording = Recording()
        self._hook: Any = None
        self._without_grad = 0  # calls in a row, up to now

    def launch(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Record a prepared call."""
        recording = self._recording
        if self._hook is None:  # at the first op, so that programs without the device have none
            self._hook = register_optimizer_step_post_hook(lambda *_: self.flush())
        with_grad = torch.is_grad_enabled()
        if (
            recording.done
            or (call is recording.first and recording.length >= LOOP_CALLS)
            or (with_grad and self._without_grad >= NO_GRAD_CALLS)
        ):
            recording.flush()
            recording = self._recording = Recording()
        self._without_grad = 0 if with_grad else self._without_grad + 1
        recording.add(call, arrays, targets)

    def launch_whole(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Run a compiled graph, which is a program of its own, after what is recorded."""
        self.flush()
        if Pending in map(type, arrays):
            arrays = [a.result if type(a) is Pending else a for a in arrays]
        for target, result in zip(targets, call.run(arrays), strict=True):
            target.array = result

    random_key = staticmethod(device_keys)

    def flush(self) -> None:
        """Launch what is recorded."""
        with launch_lock:
            self._recording.flush()

    def enter(self) -> None:
        """Become the current mode."""

    def leave(self) -> None:
        """Stop being the current mode, with nothing held back."""
        self.flush()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
