"""Unrolled kernels for the commonest calls: one to three tensors, perhaps a number at the end.

The general kernel loops over its arguments; for these calls that loop costs as much as the launch
on the device. The text of each kernel is made from the schema; a call that it does not know goes to
the general kernel, which checks and prepares it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchtpu.eager import blame, modes
from torchtpu.eager.call import Call
from torchtpu.eager.operation import Operation
from torchtpu.eager.schema import Kind
from torchtpu.private import torch as private
from torchtpu.storage import Buffer, buffer_of, launch_lock, mark_lost
from torchtpu.tensor import new_capsule, next_address

_NUMBERS = frozenset({int, float})

# What a program depends on of a tensor a in buffer ba; lazy bits are left to the general kernel.
_PLACE = "b{a}.layout, {a}.shape, {a}.stride(), {a}.storage_offset(), {a}.dtype"
_place: Callable[[Buffer, torch.Tensor], tuple[Any, ...]] = eval(
    f"lambda ba, a: ({_PLACE.format(a='a')})"
)

_KERNEL = """
def kernel({parameters}, *more, **kwargs):
    if more or kwargs{guard}:
        return otherwise({parameters}, *more, **kwargs)
    try:
        {buffers}
        call = known.get({naturals})
        if call is None:
            call = calls[{signature}]
    except (AttributeError, KeyError):
        return remember({parameters})
    try:
        with launch_lock:
            {made}if modes.current is strict:
                {target}.array = call.run([{arrays}])[0]
            else:
                modes.current.launch(call, [{arrays}], ({target},))
    except BaseException as error:
        {lost}annotate(error, name)
        raise
    {result}
"""
_NEW = """factory = call.factory
    factory.struct.data = next_address()
    made = from_capsule(new_capsule(factory.struct_address, b"dltensor", None))
    made.untyped_storage()._tpu_buffer = buffer
    buffer.natural = factory
    return made"""


class Helpers(NamedTuple):
    """What the general kernel lends: itself, numbers as device arrays, the tables of calls."""

    general: Callable[..., Any]
    number: Callable[[Any, Any], Any]
    tables: list[dict[Any, Call]]
    max_signatures: int


def kernel(operation: Operation, helpers: Helpers) -> Callable[..., Any]:
    """Return an unrolled kernel before the general one; the general one for less simple ops."""
    required = [a for a in operation.arguments if not a.has_default]
    written = [i for i, a in enumerate(operation.arguments) if a.written]
    simple = (
        1 <= len(required) <= 3
        and all(a.kind == Kind.TENSOR for a in required[:-1])
        and required[-1].kind in (Kind.TENSOR, Kind.NUMBER)
        and required[0].kind == Kind.TENSOR
        and written in ([], [0])
        and not operation.lowering.key
        and not operation.lowering.writes
    )
    if not simple:
        return helpers.general
    fast = helpers.general
    if len(required) > 1:
        fast = _unrolled(operation, helpers, fast, len(required), number=True)
    if required[-1].kind == Kind.TENSOR:
        fast = _unrolled(operation, helpers, fast, len(required), number=False)
    return fast


class _Table:
    """The calls that an unrolled kernel serves."""

    def __init__(self, operation: Operation, helpers: Helpers, tensors: int) -> None:
        self.calls: dict[Any, Call] = {}
        self.known: dict[Any, Call] = {}  # the same, for tensors that are all their buffers hold
        self._others: set[Any] = set()  # signatures that only the general kernel serves
        self._operation = operation
        self._helpers = helpers
        self._tensors = tensors
        helpers.tables.extend([self.calls, self.known])

    def remember(self, *args: Any) -> Any:
        """Run a call the general way; keep it for the next time where it is simple enough."""
        result = self._helpers.general(*args)
        found = args[: self._tensors]
        if all(_is_plain(a) for a in found):
            signature = _signature(found)
            if signature not in self._others:
                self._consider(signature, found, args)
        return result

    def _consider(self, signature: Any, found: Sequence[Any], args: Sequence[Any]) -> None:
        if max(len(self.calls), len(self._others)) >= self._helpers.max_signatures:
            for kept in (self.calls, self.known, self._others):
                kept.clear()
        call = self._operation.prepare(args, {})
        simple = len(call.writes) == 1 if self._operation.mutates else call.single
        if not simple or call.reads is not None or len(call.program.inputs) != len(args):
            self._others.add(signature)
            return
        classes = tuple(a.__class__ for a in args[self._tensors :])
        self.calls[(*signature, *classes)] = call
        naturals = [buffer_of(t.untyped_storage()).natural for t in found]
        if all(naturals):
            self.known[(*naturals, *classes)] = call


def _unrolled(
    operation: Operation,
    helpers: Helpers,
    otherwise: Callable[..., Any],
    count: int,
    *,
    number: bool,
) -> Callable[..., Any]:
    names = [f"a{i}" for i in range(count)]
    tensors = names[:-1] if number else names
    last = names[-1]
    table = _Table(operation, helpers, len(tensors))
    special = operation.constants.get(operation.arguments[count - 1].name, frozenset())
    guards = [f"{last}.__class__ not in numbers or {last} in special"] if number else []
    if not number and operation.arguments[count - 1].kind == Kind.TENSOR:
        guards.append(f"{last}.__class__ in numbers")
    parts = [_PLACE.format(a=n) for n in tensors]
    arrays = [f"b{n}.array if b{n}.array is not None else b{n}.value()" for n in tensors]
    buffers = [f"b{n} = {n}.untyped_storage()._tpu_buffer" for n in tensors]
    if number:
        parts.append(f"{last}.__class__")
        arrays.append(f"number({last}, call.number_types[0])")
    naturals = [f"b{n}.natural" for n in tensors] + ([f"{last}.__class__"] if number else [])
    if operation.mutates:
        same = " or ".join(["ba0.shared", *(f"b{m} is b{n}" for m, n in combinations(tensors, 2))])
        buffers.append(f"if {same}: return general({', '.join(names)})")
    source = _KERNEL.format(
        parameters=", ".join(names),
        guard="".join(f" or {g}" for g in guards),
        buffers="\n        ".join(buffers),
        signature=", ".join(parts) + ",",
        naturals=f"({', '.join(naturals)},)",
        made="" if operation.mutates else "buffer = Buffer(call.layout)\n            ",
        target="ba0" if operation.mutates else "buffer",
        arrays=", ".join(arrays),
        lost="mark_lost((ba0,))\n        " if operation.mutates else "",
        result="return a0" if operation.mutates else _NEW,
    )
    scope: dict[str, Any] = {
        "Buffer": Buffer,
        "annotate": blame.annotate,
        "calls": table.calls,
        "known": table.known,
        "from_capsule": private.from_dlpack,
        "new_capsule": new_capsule,
        "next_address": next_address,
        "general": helpers.general,
        "launch_lock": launch_lock,
        "mark_lost": mark_lost,
        "modes": modes,
        "name": operation.name,
        "number": helpers.number,
        "numbers": _NUMBERS,
        "otherwise": otherwise,
        "remember": table.remember,
        "special": special,
        "strict": modes.STRICT,
    }
    exec(compile(source, f"{Path(__file__).parent}/<kernel of {operation.name}>", "exec"), scope)
    made: Callable[..., Any] = scope["kernel"]
    return made


def _is_plain(value: Any) -> bool:
    """Tell whether a value is a device tensor that cannot be lazily conjugated."""
    if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
        return False
    return not buffer_of(value.untyped_storage()).layout.dtype.is_complex


def _signature(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return tuple(part for t in tensors for part in _place(buffer_of(t.untyped_storage()), t))
