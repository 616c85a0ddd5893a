"""The error of a simulated chip whose HBM is full: torch's own, with what is alive, and what
becomes of the tensors that a program would have changed.
"""

from __future__ import annotations

import contextlib
import gc
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from torchtpu.eager import blame
from torchtpu.errors import TpuError
from torchtpu.perf_model.quantities import size
from torchtpu.sim.context import context
from torchtpu.sim.memory import OutOfHBM
from torchtpu.storage import Buffer, Deferred, mark_lost

_NOTED_BYTES = 1 << 20  # lines of smaller storages are not kept
_LISTED = 8

_lines: weakref.WeakKeyDictionary[Buffer, str] = weakref.WeakKeyDictionary()


class OutOfMemoryError(TpuError, OutOfHBM, torch.OutOfMemoryError):
    """What torch.OutOfMemoryError (and torch.cuda's, which is the same) catches."""


def serve() -> None:
    """Tell simulated devices where the user's program is, and how to say that HBM is full."""
    context.user_line = blame.user_line
    context.on_full = _full
    context.on_storage = _note


def _full(error: OutOfHBM) -> OutOfMemoryError:
    return OutOfMemoryError(
        requested_bytes=error.requested_bytes,
        in_use_bytes=error.in_use_bytes,
        capacity_bytes=error.capacity_bytes,
        chip=error.chip,
        details=(*error.details, *alive()),
    )


def _note(holder: object, size_bytes: int) -> None:
    if size_bytes >= _NOTED_BYTES and isinstance(holder, Buffer):
        _lines[holder] = blame.user_line()


def alive() -> list[str]:
    """Return a line for each kind of the largest tensors with device memory: number, dtype, shape,
    bytes in all, and the parameter that they are or the line that made them.
    """
    rows: dict[tuple[str, str], tuple[int, int]] = {}
    objects = gc.get_objects()
    names = dict(_names(objects))
    for buffer in (o for o in objects if type(o) is Buffer):
        name = names.get(id(buffer))
        pending = isinstance(buffer.array, Deferred) and name is None
        asked = buffer.array is None and buffer.natural is None  # for what does not fit
        if pending or asked or buffer.freed or not buffer.layout.nbytes:
            continue
        shape = getattr(buffer.natural, "shape", buffer.layout.shape)
        where = name or f"made at {_lines.get(buffer) or 'an unknown line'}"
        key = f"{str(buffer.layout.dtype).removeprefix('torch.')} {list(shape)}", where
        count, total = rows.get(key, (0, 0))
        rows[key] = count + 1, total + buffer.layout.nbytes
    ordered = sorted(rows.items(), key=lambda row: (-row[1][1], row[0]))
    lines = [f"  {n} x {kind} = {size(b)}, {where}" for (kind, where), (n, b) in ordered[:_LISTED]]
    if ordered[_LISTED:]:
        rest = [row[1] for row in ordered[_LISTED:]]
        lines.append(f"  and {sum(n for n, _ in rest)} smaller, {size(sum(b for _, b in rest))}")
    return ["The largest live tensors:", *lines] if lines else ["No tensor is alive."]


def _names(objects: list[Any]) -> Iterator[tuple[int, str]]:
    """(id of a buffer, what it is) for parameters, their gradients and states of optimizers."""
    for optimizer in (o for o in objects if issubclass(type(o), Optimizer)):
        for state in getattr(optimizer, "state", {}).values():
            for key, value in state.items() if isinstance(state, dict) else ():
                yield from _named(value, f"{key} of {type(optimizer).__name__}")
    modules = [o for o in objects if issubclass(type(o), torch.nn.Module)]
    # Not before its __init__, and no compiled module, which wraps one.
    modules = [m for m in modules if "_orig_mod" not in m.__dict__.get("_modules", ("_orig_mod",))]
    inner = {id(child) for module in modules for child in module._modules.values()}
    for root in (m for m in modules if id(m) not in inner):
        for name, parameter in (*root.named_parameters(), *root.named_buffers()):
            path = re.sub(r"\.\d+(?=\.|$)", ".*", f"{type(root).__name__}.{name}")
            yield from _named(parameter, path)
            if parameter.is_leaf and not _is_pending(parameter.grad):
                yield from _named(parameter.grad, f"gradient of {path}")


def _is_pending(value: Any) -> bool:
    return any(isinstance(b.array, Deferred) for b in _buffers(value))


def _named(value: Any, name: str) -> Iterator[tuple[int, str]]:
    return ((id(buffer), name) for buffer in _buffers(value))


def _buffers(value: Any) -> list[Buffer]:
    """The buffer of a device tensor; none for anything else."""
    if isinstance(value, torch.Tensor):
        with contextlib.suppress(AttributeError, RuntimeError):  # no device memory of its own
            return [value.untyped_storage()._tpu_buffer]  # type: ignore[attr-defined]  # set by TensorFactory
    return []


def undo(
    error: Exception,
    steps: Sequence[tuple[Any, Sequence[int], str]],
    arrays: Sequence[Any],
    holders: Sequence[weakref.ref[Buffer]],
) -> None:
    """Make a recorded program that did not run for want of memory one that never was: tensors that
    it was to overwrite keep what they held, and gradients that it was to make are None. So a
    training goes on with a smaller batch.

    steps: (call, where its inputs come from, line) in order; holders: per value, the buffer that it
    was made for; arrays: what went in.
    """
    number = 0
    for call, wiring, _ in steps:
        number += len(call.program.outputs) - len(call.writes)
        for index, _ in call.writes:
            holder, place = holders[number](), _input_of(call, index)
            number += 1
            if holder is None or holder.array is not None or place is None or wiring[place] >= 0:
                continue
            holder.array, holder.freed = arrays[-1 - wiring[place]], ""
            holder.shared = place not in call.program.donated
            mark_lost((holder,))
    for tensor in (o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)):
        if tensor.is_leaf and any(b.freed and b.array is None for b in _buffers(tensor.grad)):
            tensor.grad = None
    error.add_note("[torchtpu] tensors that this program was to change keep the values from before")


def _input_of(call: Any, buffer: int) -> int | None:
    """The input of a call's program that is its n-th buffer."""
    if call.reads is None:
        return buffer
    return call.reads.index(buffer) if buffer in call.reads else None
