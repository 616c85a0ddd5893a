"""The hot path: a kernel for one overload, from arguments to a prepared call and its launch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from torchtpu import executor
from torchtpu.eager import blame, fast, modes
from torchtpu.eager.call import Call, OutputsNeedResize, Scalar
from torchtpu.eager.operation import Operation
from torchtpu.eager.schema import Kind
from torchtpu.errors import TpuError
from torchtpu.private import torch as private
from torchtpu.storage import Buffer, launch_lock, mark_lost
from torchtpu.tensor import is_lazy, place_of, settled

_TENSOR, _STATIC, _NUMBER = Kind.TENSOR, Kind.STATIC, Kind.NUMBER
_TENSORS, _NUMBERS = Kind.TENSORS, Kind.NUMBERS
# eager/conjugate.py asks these for the stored values of lazily conjugated tensors.
_OF_STORED_VALUES = frozenset({"aten::clone", "aten::copy_", "aten::_conj_physical", "aten::neg"})
MAX_SIGNATURES = 1024  # prepared calls of one op; shapes that never come again are forgotten
_SCALARS = frozenset({float, int, bool, complex})


def make(operation: Operation) -> Callable[..., Any]:  # noqa: C901, PLR0915  # one loop
    """Return the kernel of an operation, to be registered with torch's dispatcher.

    A call's key holds all that its program depends on: the views and layouts of its tensors, static
    arguments, and the types (not the values) of its numbers. What does not change is prepared once.
    """
    calls: dict[Any, Call] = {}
    _call_tables.append(calls)
    kinds = tuple(a.kind for a in operation.arguments)
    constants = tuple(operation.constants.get(a.name, frozenset()) for a in operation.arguments)
    slots = tuple(zip(kinds, constants, strict=True))
    named = {a.name: slot for a, slot in zip(operation.arguments, slots, strict=True)}
    aliasing = operation.mutates
    settles = operation.name not in _OF_STORED_VALUES

    def kernel(*args: Any, **kwargs: Any) -> Any:  # noqa: C901  # calls would cost more
        key: list[Any] = [len(args)]
        buffers: list[Buffer] = []
        numbers: list[Any] = []
        pairs: Any = zip(slots, args)  # noqa: B905  # trailing defaults are left out by torch
        if kwargs:
            key.extend(kwargs)
            pairs = [*pairs, *((named[n], v) for n, v in kwargs.items())]
        try:
            for (kind, special), value in pairs:
                if kind == _TENSOR:
                    try:
                        buffer = value.untyped_storage()._tpu_buffer
                    except AttributeError:
                        _foreign(value, key, numbers)
                        continue
                    if settles and buffer.layout.dtype.is_complex and is_lazy(value):
                        return kernel(*settled(args), **settled(kwargs))
                    buffers.append(buffer)
                    if buffer.natural is not None:
                        key.append(buffer.natural)
                    else:
                        key += place_of(buffer, value)
                elif kind == _NUMBER:
                    key.append(type(value))
                    if value is None or type(value) is bool or value in special:
                        key.append(value)
                    else:
                        numbers.append(value)
                elif kind == _STATIC:
                    key.append(tuple(value) if type(value) is list else value)
                elif kind == _TENSORS:
                    _tensor_list(value, key, buffers, numbers)
                elif kind == _NUMBERS:
                    _number_list(value, key, numbers)
                elif not isinstance(value, private.Generator):
                    key.append(value)
            if aliasing and len(buffers) > 1:
                buffers, pattern = _unique(buffers)
                key.append(pattern)
            signature = tuple(key)
            call = calls.get(signature)
            if call is None:
                if len(calls) >= MAX_SIGNATURES:
                    calls.clear()
                call = calls[signature] = operation.prepare(args, kwargs)
            with launch_lock:
                return _launch(call, buffers, numbers, args, kwargs)
        except OutputsNeedResize as resize:
            resize.apply()
            return kernel(*args, **kwargs)
        except Exception as error:
            blame.annotate(error, operation.name)
            raise

    return fast.kernel(operation, fast.Helpers(kernel, device_number, _call_tables, MAX_SIGNATURES))


_call_tables: list[dict[Any, Call]] = []


def forget() -> None:
    """Drop all prepared calls: what they depend on (precision, the compile cache) has changed."""
    for table in _call_tables:
        table.clear()


executor.holders.append(forget)


def _launch(
    call: Call, buffers: list[Buffer], numbers: list[Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    if call.reads is None:
        arrays = [b.array if b.array is not None else b.value() for b in buffers]
    else:
        read = [buffers[i] for i in call.reads]
        arrays = [b.array if b.array is not None else b.value() for b in read]
    if numbers:
        for value, dtype in zip(numbers, call.number_types, strict=True):
            arrays.append(device_number(value, dtype))
    if call.key:
        given = (v for v in (*args, *kwargs.values()) if isinstance(v, private.Generator))
        arrays.append(modes.current.random_key(next(given, None)))
    made = [Buffer(f.layout) for f in call.factories]
    if not call.writes:
        modes.current.launch(call, arrays, made)
    else:
        written = [buffers[i] for i, _ in call.writes]
        try:
            run = call.unshared if any(b.shared for b in written) else call
            modes.current.launch(run, arrays, made + written)
        except BaseException:  # an interrupt too may come when the memory is already taken over
            mark_lost(written)
            raise
        for buffer in written:
            buffer.shared, buffer.freed = False, ""
    if call.single:
        return call.factories[0](made[0])
    return call.returned(made, args, kwargs)


def _foreign(value: Any, key: list[Any], numbers: list[Any]) -> None:
    """A tensor argument without device memory: absent, a number, or of another device."""
    if value is None:
        key.append(None)
    elif type(value) in _SCALARS:
        key.append(type(value))
        numbers.append(value)
    elif value.device.type == "cpu" and value.dim() == 0:
        key.append(value.dtype)
        numbers.append(Scalar(value.item(), value.dtype))
    elif value.device.type == "tpu":
        raise TpuError("expected a tensor with device memory, got one made outside torchtpu")
    else:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"tpu:0 and {value.device}! Move it with .to('tpu')"
        )


def _tensor_list(
    values: Sequence[Any], key: list[Any], buffers: list[Buffer], numbers: list[Any]
) -> None:
    key.append(len(values))
    try:  # the commonest case, quickly: tensors that are all their buffers hold
        found = [value.untyped_storage()._tpu_buffer for value in values]
        naturals = [buffer.natural for buffer in found]
    except AttributeError:
        naturals = [None]
    if None not in naturals:
        buffers += found
        key += naturals
        return
    for value in values:
        try:
            buffer = value.untyped_storage()._tpu_buffer
        except AttributeError:
            _foreign(value, key, numbers)
            continue
        buffers.append(buffer)
        if buffer.natural is not None:
            key.append(buffer.natural)
        else:
            key += place_of(buffer, value)


def _number_list(values: Any, key: list[Any], numbers: list[Any]) -> None:
    if values is None:
        key.append(None)
        return
    key.append(tuple(map(type, values)))
    numbers.append(tuple(values))


def _unique(buffers: list[Buffer]) -> tuple[list[Buffer], tuple[int, ...] | None]:
    """Return the distinct buffers and, where some are the same, which of them each argument is."""
    if len(set(buffers)) == len(buffers):
        return buffers, None
    seen: dict[int, int] = {}
    pattern = tuple(seen.setdefault(id(b), len(seen)) for b in buffers)
    return list({id(b): b for b in buffers}.values()), pattern


_numbers: dict[Any, Any] = {}
_MAX_NUMBERS = 256  # constants of a training loop fit; schedules and bias corrections pass through


def device_number(value: Any, dtype: Any) -> Any:
    """Return a number (or a tuple of numbers) as a device array; recent ones are kept."""
    scalar = value and value.__class__ in _SCALARS  # 0.0 is not -0.0, also inside a tuple
    key = (value, value.__class__, dtype) if scalar else (_spelled(value), dtype)
    found = _numbers.get(key)
    if found is None:
        if type(value) is Scalar:
            value = value.value
        if len(_numbers) >= _MAX_NUMBERS:
            _numbers.clear()
        found = _numbers[key] = executor.current().target.put(to_dtype(value, dtype))
    return found


def _spelled(value: Any) -> bytes | str:
    try:
        return array("d", value).tobytes() if {*map(type, value)} == {float} else repr(value)
    except TypeError:
        return repr(value)


def kept_numbers() -> list[Any]:
    """Return the device arrays of recent numbers: alive, but no tensor's memory."""
    return list(_numbers.values())


def to_dtype(value: Any, dtype: Any) -> Any:
    """Return a host number as a numpy array; integers wrap as torch's do."""
    import numpy as np

    if dtype.kind in "iu" and not isinstance(value, (tuple, complex)):
        bits = dtype.itemsize * 8
        wrapped = int(value) & ((1 << bits) - 1)
        return np.array(wrapped, f"u{dtype.itemsize}").view(dtype)
    return np.asarray(value, dtype)
