"""Fused mode: calls are recorded and run later as one program of many ops.

A recording is a path in a trie: each edge is a call and where its inputs come from, so a sequence
seen before is recognised as it is recorded, without hashing the whole program. A flush runs the
program of the path; its outputs are the values whose buffers are still alive.

Where a recording is cut depends only on the program's text: at reads of values, at the end of
`optimizer.step()`, at the end of an outermost module called without gradients, where a long loop
without either starts again, and at `MAX_CALLS`.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from torchtpu import executor
from torchtpu.program import ArrayType, Node, Program, Ref
from torchtpu.storage import Buffer, Deferred

LOOP_CALLS = 256  # a first call that comes again after so many is taken for a loop's next turn
MAX_CALLS = 512  # a bound on what is held back: compiling time grows faster than the program


class Pending(Deferred):
    """Stands in a Buffer for an array that a recorded call will make."""

    __slots__ = ("index", "recording", "result")

    def __init__(self, recording: Recording, index: int) -> None:
        self.recording = recording
        self.index = index
        self.result: Any = None  # the array, once the recording has run

    def materialize(self) -> None:
        """Run the recording that this belongs to."""
        self.recording.flush()


class _State:
    """A point in the trie: the calls that lead here, and the programs compiled for this path."""

    __slots__ = ("call", "next", "parent", "programs", "wiring")

    def __init__(self, parent: _State | None, call: Any, wiring: tuple[int, ...]) -> None:
        self.parent = parent
        self.call = call
        self.wiring = wiring  # per input: a value's number, or -1 - n for the n-th outside array
        self.next: dict[Any, _State] = {}
        self.programs: dict[Any, Any] = {}

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

    def follow(self, state: _State, call: Any, wiring: tuple[int, ...]) -> _State:
        """Return the state after a call, made where the sequence is new."""
        found = state.next.get((call, wiring))
        if found is None:
            found = state.next[call, wiring] = _State(state, call, wiring)
            self.states += 1
        return found

    def start(self) -> _State:
        """Return the state of an empty recording."""
        if self.states > MAX_STATES:
            self.root, self.states = _State(None, None, ()), 0
        return self.root


_trie = _Trie()


class Recording:
    """Calls since the last flush: where we are in the trie, outside arrays, and who holds what."""

    def __init__(self) -> None:
        self.done = False
        self.first: Any = None
        self.state = _trie.start()
        self.length = 0
        self.arrays: list[Any] = []
        self.known: dict[int, int] = {}  # id of an outside array -> its number
        self.overwritten: set[int] = set()  # outside arrays whose buffers have new contents
        self.holders: list[weakref.ref[Buffer]] = []  # per value: the buffer that it was made for

    def add(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Record a call; its targets get Pendings."""
        wiring = []
        tensors = len(arrays) - call.extra_inputs
        for position, array in enumerate(arrays):
            if type(array) is Pending:
                if array.recording is self:
                    wiring.append(array.index)
                    continue
                array = array.result  # of a recording that was cut before this call
            if position >= tensors:  # numbers are never told apart by value
                self.arrays.append(array)
                wiring.append(-len(self.arrays))
            else:
                number = self.known.get(id(array))
                if number is None:
                    self.arrays.append(array)
                    number = self.known[id(array)] = len(self.arrays)
                wiring.append(-number)
        for position in call.program.donated:
            if wiring[position] < 0:
                self.overwritten.add(-1 - wiring[position])
        self.state = _trie.follow(self.state, call, tuple(wiring))
        self.first = self.first or call
        self.length += 1
        for target in targets:
            target.array = Pending(self, len(self.holders))
            self.holders.append(weakref.ref(target))
        if self.length >= MAX_CALLS:
            self.flush()

    def flush(self) -> None:
        """Run what was recorded; later calls start a new recording."""
        if self.done:
            return
        self.done = True
        live, buffers = [], []
        for index, reference in enumerate(self.holders):
            buffer = reference()
            if buffer is not None:
                held = buffer.array
                if type(held) is Pending and held.index == index and held.recording is self:
                    live.append(index)
                    buffers.append(buffer)
        if not live:
            return
        key = (tuple(live), frozenset(self.overwritten))
        run = self.state.programs.get(key)
        if run is None:
            types = [b.layout.type for b in buffers]
            program = _program(self.state, live, types, self.overwritten)
            run = self.state.programs[key] = executor.current().executable(program).run
        arrays, self.arrays, self.holders, self.known = self.arrays, [], [], {}
        try:
            results = run(arrays)
        except Exception as error:
            for buffer in buffers:
                buffer.array = None
                buffer.freed = f"the program that computes it failed: {error}"
            raise
        for buffer, result in zip(buffers, results, strict=True):
            buffer.array.result = result  # for calls that have the Pending in hand
            buffer.array = result


class Fused:
    """Calls are recorded; a recording is cut at the places that the module's docstring names."""

    def __init__(self) -> None:
        self._recording = Recording()
        self._depth = 0
        self._hooks: list[Any] = []

    def launch(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Record a prepared call."""
        recording = self._recording
        if recording.done or (call is recording.first and recording.length >= LOOP_CALLS):
            recording.flush()
            recording = self._recording = Recording()
        recording.add(call, arrays, targets)

    def flush(self) -> None:
        """Launch what is recorded."""
        self._recording.flush()

    def enter(self) -> None:
        """Become the current mode: watch for the ends of steps."""
        self._depth = 0
        self._hooks = [
            optimizers.register_optimizer_step_post_hook(self._stepped),
            modules.register_module_forward_pre_hook(self._module_enters),
            modules.register_module_forward_hook(self._module_left, always_call=True),
        ]

    def leave(self) -> None:
        """Stop being the current mode, with nothing held back."""
        self.flush()
        for hook in self._hooks:
            hook.remove()

    def _stepped(self, *_: Any) -> None:
        self.flush()

    def _module_enters(self, *_: Any) -> None:
        self._depth += 1

    def _module_left(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and not torch.is_grad_enabled():
            self.flush()


def _program(
    state: _State, live: Sequence[int], outputs: Sequence[ArrayType], overwritten: set[int]
) -> Program:
    """Join the programs of the calls on a path into one, with the live values as outputs."""
    types: dict[int, ArrayType] = {}
    placed: list[tuple[Program, tuple[int, ...]]] = []
    for step in state.path():
        program = step.call.program
        placed.append((program, step.wiring))
        for wire, type_ in zip(step.wiring, program.inputs, strict=True):
            if wire < 0:
                types[-1 - wire] = type_
    inputs = [types[i] for i in range(len(types))]
    nodes: list[Node] = []
    count = len(inputs)
    values: list[int] = []  # number in the whole program of each recorded value
    for program, wiring in placed:
        numbers = [values[w] if w >= 0 else -1 - w for w in wiring]
        for node in program.nodes:
            args, kwargs = _shifted(node.args, numbers), _shifted(node.kwargs, numbers)
            nodes.append(Node(node.op, node.fn, args, kwargs, node.outputs))
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


def _shifted(argument: Any, numbers: Sequence[int]) -> Any:
    if type(argument) is Ref:
        return Ref(numbers[argument.index])
    if type(argument) is tuple:
        return tuple(_shifted(a, numbers) for a in argument)
    return argument
