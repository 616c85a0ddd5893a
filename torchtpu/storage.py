"""Buffers: the device memory behind a torch storage, and how a storage finds it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import torch

from torchtpu import dtypes, executor, targets, views
from torchtpu.errors import FreedStorageError, TpuError
from torchtpu.program import ArrayType, Node, Program, Ref


class Layout:
    """Physical shape and dtype of a buffer; interned, so that equality is identity."""

    __slots__ = ("dtype", "nbytes", "shape", "type")

    _known: ClassVar[dict[tuple[tuple[int, ...], torch.dtype], Layout]] = {}

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.type = ArrayType(shape, dtypes.to_numpy(dtype))

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        """Return the one layout of this shape and dtype."""
        key = (shape, dtype)
        found = cls._known.get(key)
        if found is None:
            found = cls._known.setdefault(key, cls(shape, dtype))
        return found

    def __repr__(self) -> str:
        return f"Layout({self.shape}, {self.dtype})"


def physical_layout(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> tuple[Layout, tuple[int, ...] | None]:
    """Return the layout of a new storage for a tensor, and the dim order if it is a permutation.

    Dense tensors (contiguous, channels_last, transposed) are kept in the order of their strides;
    anything else (gaps, overlaps) becomes one dimension of as many elements as it reaches.
    """
    order = tuple(sorted(range(len(shape)), key=lambda d: (-strides[d], d)))
    physical = tuple(shape[d] for d in order)
    dense = views.contiguous_strides(physical)
    if all(n == 1 or strides[d] == s for d, n, s in zip(order, physical, dense, strict=True)):
        return Layout.of(physical, dtype), order
    if 0 in shape:
        return Layout.of(shape, dtype), tuple(range(len(shape)))
    view = views.View(shape, strides, 0, dtypes.to_numpy(dtype))
    return Layout.of((views.needed_elements(view),), dtype), None


# A launch reads buffers, may take over the memory of some, and writes others: one thread at a time.
launch_lock = threading.RLock()


class Deferred:
    """What stands in a buffer for an array that is recorded and not yet computed."""

    __slots__ = ()

    def materialize(self) -> None:
        """Compute it; the buffer that holds this then holds the array."""
        raise AssertionError("a Deferred is made by a mode that defers")


class Buffer:
    """One allocation of device memory; `array` is None while nothing was written to it.

    `natural` is the maker of the one tensor whose sizes, strides and dtype every tensor on this
    buffer has; None as soon as there may be others (a view, or a tensor reshaped in place).
    """

    __slots__ = (
        "__weakref__",
        "_account",
        "_allocated",
        "array",
        "freed",
        "layout",
        "natural",
        "shared",
    )

    on_zeros: ClassVar[Callable[[Buffer], None] | None] = None  # is told of what was never written

    def __init__(self, layout: Layout, array: Any = None) -> None:
        self._allocated = 0
        self.layout = layout
        self.array = array
        self.natural: object = None
        self.shared: object = False  # true: somebody else holds the array too: never donate it
        self.freed = ""  # why the memory is gone, where it is
        self._account = account = executor.current().target.memory
        used = account.in_use_bytes + layout.nbytes
        if used > account.quiet_bytes:  # a new peak
            account.allocate(layout.nbytes, self)
        else:
            account.in_use_bytes = used
            account.allocations += 1
        self._allocated = layout.nbytes

    def __del__(self) -> None:
        try:
            self._account.in_use_bytes -= self._allocated
        except AttributeError:  # __init__ found no device
            return

    def value(self) -> Any:
        """Return the array, zeros where nothing was written; FreedStorageError where it is gone."""
        held = self.array
        if isinstance(held, Deferred):
            held.materialize()
        if self.array is None:
            if self.freed:
                raise FreedStorageError(f"[storage] read of freed device memory: {self.freed}")
            self.array = _zeros(self.layout)
            if Buffer.on_zeros is not None:
                Buffer.on_zeros(self)
        return self.array

    def overwrite(self, value: np.ndarray[Any, Any]) -> None:
        """Replace all contents by a host array; on a mesh it lies as the contents before."""
        target = executor.current().target
        spec: targets.Spec | None = ()
        if target.mesh is not None and self.array is not None:
            spec = target.mesh.spec(self.value()) or ()
        self.array, self.shared, self.freed = target.put(value, spec), False, ""

    def resize(self, nbytes: int) -> None:
        """Keep the first bytes in a storage of another size; 0 frees the memory (as FSDP does)."""
        if nbytes == self.layout.nbytes:
            return
        itemsize = self.layout.dtype.itemsize
        if nbytes % itemsize:
            raise TpuError(
                f"[storage.resize_] expected a multiple of {itemsize} bytes, got {nbytes}"
            )
        new = Layout.of((nbytes // itemsize,), self.layout.dtype)
        kept = None if self.array is None else self.value()
        if kept is not None and nbytes:
            kept = _run(_resized, self.layout, new, kept)
        if kept is None:
            executor.current().target.reserve(self, nbytes)
        old = self._allocated
        self._account.allocate(new.nbytes, self)
        self._allocated = new.nbytes
        self._account.in_use_bytes -= old
        self.layout, self.array, self.shared = new, kept if nbytes else None, False
        self.natural = None
        self.freed = "" if nbytes else "the storage was resized to 0 bytes"

    def convert(self, layout: Layout) -> None:
        """Store the same bytes under another layout of the same size."""
        if self.array is not None:
            self.array = _run(_reinterpreted, self.layout, layout, self.value())
            self.shared = False
        self.layout = layout
        self.natural = None


def mark_lost(buffers: Iterable[Buffer]) -> None:
    """Mark those buffers whose memory a failed program had already taken over."""
    for buffer in buffers:
        deleted = getattr(buffer.array, "is_deleted", None)
        if deleted is not None and deleted():
            buffer.array = None
            buffer.freed = "the program that was to overwrite it failed"


def buffer_of(storage: torch.UntypedStorage) -> Buffer:
    """Return the buffer of a tpu storage; TpuError where the storage is none of ours."""
    try:
        return storage._tpu_buffer  # type: ignore[attr-defined,no-any-return]  # set by TensorFactory
    except AttributeError:
        raise TpuError(
            "[storage] expected a storage made by torchtpu on device tpu, got one on "
            f"{storage.device} without device memory"
        ) from None


def _resized(array: Any, elements: int) -> Any:
    import jax.numpy as jnp

    flat = array.reshape(-1)[:elements]
    return jnp.pad(flat, (0, elements - flat.size))


def _reinterpreted(array: Any, view: views.View) -> Any:
    return views.read(array, view)


def _full(value: Any, shape: tuple[int, ...]) -> Any:
    import jax.numpy as jnp

    return jnp.broadcast_to(value, shape)


_SENT_BYTES = 1 << 20  # zeros up to here come from the host, which compiles nothing


def _zeros(layout: Layout) -> Any:
    target, dtype = executor.current().target, layout.type.dtype
    if layout.nbytes <= _SENT_BYTES or target.mesh is not None:
        return target.put(np.zeros(layout.shape, dtype), None)
    node = Node("aten::zeros", _full, (Ref(0), layout.shape), (), 1)
    program = Program((ArrayType((), dtype),), (node,), (1,))
    return executor.current().executable(program).run([target.put(np.zeros((), dtype))])[0]


def _run(fn: Callable[..., Any], old: Layout, new: Layout, array: Any) -> Any:
    if fn is _resized:
        argument: Any = math.prod(new.shape)
    else:
        argument = views.View(new.shape, views.contiguous_strides(new.shape), 0, new.type.dtype)
    node = Node("storage", fn, (Ref(0), argument), (), 1)
    return executor.current().executable(Program((old.type,), (node,), (1,))).run([array])[0]
