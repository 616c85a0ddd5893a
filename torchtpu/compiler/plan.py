"""Plans: what a captured function needs to run, and how its results become tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from torchtpu import views
from torchtpu.eager import modes
from torchtpu.eager.call import Call
from torchtpu.eager.capture import Capture, Captured, Given, Keys, capturing
from torchtpu.eager.view_ops import meta_view, viewed
from torchtpu.generator import device_keys
from torchtpu.program import Node, Program, Ref
from torchtpu.storage import Buffer, Layout, buffer_of, launch_lock, mark_lost
from torchtpu.tensor import TensorFactory, factory

Lazy = tuple[bool, bool]  # stands for the conjugate, for the negative


class Plan(NamedTuple):
    """The program that a function is for one kind of inputs, and the way in and out of it."""

    call: Call
    fixed: list[Any]  # the program's inputs; None for those below
    given: tuple[tuple[int, int], ...]  # (input of the program, input of the function)
    keys: tuple[tuple[int, Keys], ...]  # (input of the program, random keys to be drawn)
    factories: tuple[TensorFactory, ...]  # of the new tensors
    written: tuple[int, ...]  # inputs that get new contents
    results: tuple[Any, ...]
    kept: tuple[int, ...]  # inputs that results are views of

    def run(self, inputs: list[Any], buffers: Sequence[Any]) -> list[Any]:
        """Launch on inputs and their buffers (in the same order); the list of inputs is emptied."""
        launch = modes.current.launch_whole
        if self.call.program.ranks:  # where all members are about to launch it
            modes.current.flush()
            launch = _launch
        kept = {number: inputs[number] for number in self.kept}
        inputs.clear()
        with launch_lock:
            arrays = self._arrays(buffers)
            made = [Buffer(f.layout) for f in self.factories]
            written = [buffers[i] for i in self.written]
            special = [b for b in written if b.shared or b.freed]
            call = self.call.unshared if special else self.call
            try:
                launch(call, arrays, made + written)
            except BaseException:
                mark_lost(written)
                raise
            for buffer in special:
                buffer.shared, buffer.freed = False, ""
        tensors = [make(buffer) for make, buffer in zip(self.factories, made, strict=True)]
        return [_result(r, tensors, kept) for r in self.results]

    def _arrays(self, buffers: Sequence[Any]) -> list[Any]:
        arrays = self.fixed.copy()
        for place, number in self.given:
            array = buffers[number].array
            arrays[place] = array if array is not None else buffers[number].value()
        for place, keys in self.keys:
            arrays[place] = device_keys(keys.generator, keys.number)
        return arrays


def _launch(call: Call, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
    for target, result in zip(targets, call.run(arrays), strict=True):
        target.array = result


class Changed(NamedTuple):
    """An input with new contents; the wire of its old ones is 0 where the function made it."""

    number: int
    buffer: Buffer
    wire: int


class _New(NamedTuple):
    """A result on a new buffer; `like` is the view where it is not all of the buffer."""

    position: int
    like: torch.Tensor | None
    lazy: Lazy = (False, False)


class _Same(NamedTuple):
    """A result that is an input, or the view `like` of one."""

    number: int
    like: torch.Tensor | None
    lazy: Lazy = (False, False)


class _Fixed(NamedTuple):
    """A result that is the same in every run: a number, None, or a tensor nothing computes."""

    value: Any


def _result(result: Any, tensors: Sequence[torch.Tensor], kept: dict[int, torch.Tensor]) -> Any:
    if type(result) is _Fixed:
        return result.value
    base = tensors[result.position] if type(result) is _New else kept[result.number]
    return _marked(base if result.like is None else viewed(base, result.like), result.lazy)


def _marked(tensor: torch.Tensor, lazy: Lazy) -> torch.Tensor:
    """The tensor, or what stands for its conjugate, its negative, or both."""
    tensor = torch.conj(tensor) if lazy[0] else tensor
    return torch.ops.aten._neg_view.default(tensor) if lazy[1] else tensor


def _lazy(tensor: torch.Tensor) -> Lazy:
    return tensor.is_conj(), tensor.is_neg()


def make(name: str, fn: Callable[..., Any], inputs: Sequence[Any], buffers: Sequence[Any]) -> Plan:
    """Capture `fn(*inputs)` on stand-ins for the tensors among the inputs; the rest is constant.

    buffers: those of the tensors, None for the rest. Raises CannotCapture.
    """
    with capturing() as capture:
        stand_ins = StandIns(capture, inputs, buffers)
        returned = fn(*stand_ins.values)
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        return finish(name, capture, stand_ins, results)


def of(program: Program, factories: Sequence[TensorFactory], written: Sequence[int]) -> Plan:
    """Return the plan of a program whose inputs are all of their buffers.

    Its outputs are new tensors, and then the new contents of the inputs `written`.
    """
    given = tuple((n, n) for n in range(len(program.inputs)))
    results = tuple(_New(n, None) for n in range(len(factories)))
    call = _call(program, factories)
    fixed = [None] * len(given)
    return Plan(call, fixed, given, (), tuple(factories), tuple(written), results, ())


def _call(program: Program, factories: Sequence[TensorFactory]) -> Call:
    return Call(
        program.name,
        program,
        reads=None,
        writes=(),
        number_types=(),
        key=False,
        factories=tuple(factories),
        returned=None,
    )


class StandIns:
    """Tensors that stand for inputs in a capture; those of inputs on one buffer share one too."""

    def __init__(self, capture: Capture, inputs: Sequence[Any], buffers: Sequence[Any]) -> None:
        self._own: dict[int, tuple[int, Buffer, Captured]] = {}  # id of the input's buffer -> ours
        for number, buffer in enumerate(buffers):
            if buffer is not None and id(buffer) not in self._own:
                own = Buffer(buffer.layout)
                self._own[id(buffer)] = number, own, capture.placeholder(own, number)
        self.values = [
            value if buffer is None else _stand_in(value, self._own[id(buffer)][1])
            for value, buffer in zip(inputs, buffers, strict=True)
        ]

    def number(self, buffer: Buffer) -> int | None:
        """Return the first input that a stand-in's buffer stands for; None for other buffers."""
        return next((n for n, own, _ in self._own.values() if own is buffer), None)

    def changed(self) -> list[Changed]:
        """Return those with new contents."""
        return [Changed(n, b, old.wire) for n, b, old in self._own.values() if b.array is not old]


def finish(
    name: str,
    capture: Capture,
    stand_ins: StandIns,
    results: Sequence[Any],
    changed: Sequence[Changed] = (),
) -> Plan:
    """Return the plan of what was captured; `changed` are inputs beside those of the stand-ins."""
    reading = _Results(capture, stand_ins)
    read = tuple(reading.read(value) for value in results)
    places = capture.places()
    # In the order of first use: the program then is the same however the inputs were found.
    written = sorted([*stand_ins.changed(), *changed], key=lambda w: places.get(w[2], len(places)))
    wires = reading.wires + [settled(capture, buffer) for _, buffer, _ in written]
    traced = capture.trace(wires, [wire for _, _, wire in written if wire < 0])
    call = _call(replace(traced.program, label=name), reading.factories)
    return Plan(
        call,
        [getattr(source, "array", None) for source in traced.sources],
        tuple((i, s.number) for i, s in enumerate(traced.sources) if isinstance(s, Given)),
        tuple((i, s) for i, s in enumerate(traced.sources) if isinstance(s, Keys)),
        tuple(reading.factories),
        tuple(number for number, _, _ in written),
        read,
        tuple(sorted({r.number for r in read if type(r) is _Same})),
    )


def _stand_in(tensor: torch.Tensor, buffer: Buffer) -> torch.Tensor:
    made = _whole(tensor, buffer.layout)
    found = made(buffer) if made else viewed(_base(buffer.layout)(buffer), meta_view(tensor))
    return _marked(found, _lazy(tensor)).requires_grad_(tensor.requires_grad)


def _whole(tensor: torch.Tensor, layout: Layout) -> TensorFactory | None:
    """The maker of a tensor that is all of a new buffer; None where the tensor is a part."""
    if tensor.storage_offset() or tensor.dtype != layout.dtype:
        return None
    made = factory(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
    return made if made.layout is layout else None


def _base(layout: Layout) -> TensorFactory:
    return factory(layout.shape, views.contiguous_strides(layout.shape), layout.dtype)


class _Results:
    """Reads what a captured function returned: which values are wanted, and as which tensors."""

    def __init__(self, capture: Capture, inputs: StandIns) -> None:
        self.wires: list[int] = []
        self.factories: list[TensorFactory] = []
        self._capture = capture
        self._inputs = inputs
        self._positions: dict[int, int] = {}  # id of a buffer -> its place among the new ones

    def read(self, value: Any) -> Any:
        """Return the description of a result."""
        if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
            return _Fixed(value)
        for number, given in enumerate(self._inputs.values):
            if given is value:
                return _Same(number, None)
        buffer = buffer_of(value.untyped_storage())
        number_of = self._inputs.number(buffer)
        if number_of is not None:
            here, there = _lazy(value), _lazy(self._inputs.values[number_of])
            changed = here[0] != there[0], here[1] != there[1]
            return _Same(number_of, meta_view(value), changed)
        if type(buffer.array) is not Captured:
            return _Fixed(value)
        position = self._positions.get(id(buffer))
        if position is not None:
            return _New(position, meta_view(value), _lazy(value))
        position = self._positions[id(buffer)] = len(self.wires)
        self.wires.append(settled(self._capture, buffer))
        whole = _whole(value, buffer.layout)
        self.factories.append(whole or _base(buffer.layout))
        return _New(position, None if whole else meta_view(value), _lazy(value))


def settled(capture: Capture, buffer: Buffer) -> int:
    """Return the wire of a buffer's value, a copy where it is the value of an input."""
    held = buffer.array
    assert type(held) is Captured, held
    if held.wire >= 0:
        return held.wire
    type_ = buffer.layout.type
    node = Node("view", _identity, (Ref(0),), (), 1)
    return capture.add(Program((type_,), (node,), (1,)), (held.wire,), (type_,))


def _identity(array: Any) -> Any:
    return array
