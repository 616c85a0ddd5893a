"""Copies between host and device, reads of values, and factories of empty tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from torchtpu import executor, tensor, views
from torchtpu.eager.view_ops import kernel
from torchtpu.errors import TpuError
from torchtpu.private import torch as private
from torchtpu.storage import Buffer, Deferred, buffer_of
from torchtpu.tensor import from_host, to_host, view_of

_counts_on_host: ContextVar[bool] = ContextVar("counts_on_host", default=False)
_UNINITIALIZED = (UninitializedParameter, UninitializedBuffer)  # of lazy modules


@kernel("aten::empty.memory_format")
def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """A tensor without contents; memory is accounted for, no program runs."""
    _check_factory(device, layout, pin_memory)
    shape, dtype = tuple(size), dtype or torch.get_default_dtype()
    if any(n < 0 for n in shape):
        raise RuntimeError(
            f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}"
        )
    if _counts_on_host.get() and dtype == torch.int32:
        return torch.empty(shape, dtype=dtype, device="cpu")
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return tensor.empty(shape, dtype)
    like = torch.empty(shape, dtype=dtype, device="meta", memory_format=memory_format)
    return tensor.empty(shape, dtype, tuple(like.stride()))


@contextmanager
def counts_on_host() -> Iterator[None]:
    """Let C++ code inside have its int32 tensors on the CPU, though it asks for tpu."""
    before = _counts_on_host.set(True)
    try:
        yield
    finally:
        _counts_on_host.reset(before)


@kernel("aten::zeros")
def zeros(size: Sequence[int], **options: Any) -> torch.Tensor:
    """The same: memory without contents is read as zeros, and many zeros are never read."""
    return empty(size, **options)


@kernel("aten::zeros_like")
def zeros_like(self: torch.Tensor, **options: Any) -> torch.Tensor:
    """The same with the shape, and by default the strides, of another tensor."""
    made: torch.Tensor = torch.ops.aten.empty_like.default(self, **options)
    if made.device.type != "tpu":
        return made.zero_()  # here, no contents are zeros
    if executor.current().mesh is not None and self.device.type == "tpu":
        _lie_alike(buffer_of(made.untyped_storage()), buffer_of(self.untyped_storage()))
    return made


def _lie_alike(zeros: Buffer, other: Buffer) -> None:
    """Let zeros lie on the mesh as another buffer of the same shape does: an optimizer's state."""
    target, array = executor.current().target, other.array
    if zeros.layout.shape != other.layout.shape or array is None or isinstance(array, Deferred):
        return
    assert target.mesh is not None
    spec = target.mesh.spec(array)
    if spec:
        zeros.array = target.put(np.zeros(zeros.layout.shape, zeros.layout.type.dtype), spec)


@kernel("aten::empty_strided")
def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """A tensor without contents and with these strides."""
    _check_factory(device, layout, pin_memory)
    return tensor.empty(tuple(size), dtype or torch.get_default_dtype(), tuple(stride))


@kernel("aten::_copy_from")
def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """dst.copy_(self) where at least one of them is on the device."""
    del non_blocking  # a transfer from the device waits; one to it copies the host's bytes first
    if isinstance(self, _UNINITIALIZED):  # lets nobody ask for its shape
        with private.DisableTorchFunctionSubclass():
            self = self.detach()
    if self.shape != dst.shape:
        self = _broadcast(self, dst)
    if dst.device.type != "tpu":
        dst.copy_(read(self))
    elif self.device.type == "tpu":
        torch.ops.aten.copy_.default(dst, self)
    else:
        _write_from_host(self, dst)
    return dst


_composite_to_copy: Any = torch.ops.aten._to_copy.default._op_dk
_COMPOSITE = private.DispatchKey.CompositeExplicitAutograd


@kernel("aten::_to_copy")
def to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """A copy of another dtype, device or format; one on the host is never in pinned memory."""
    if device is not None and device.type == "cpu":
        non_blocking = False  # else torch asks the device for an allocator of pinned memory
    made: torch.Tensor = _composite_to_copy(
        _COMPOSITE,
        self,
        dtype=dtype,
        layout=layout,
        device=device,
        pin_memory=pin_memory,
        non_blocking=non_blocking,
        memory_format=memory_format,
    )
    return made


def _broadcast(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    try:
        return self.expand(dst.shape)
    except RuntimeError:  # say it as Tensor.copy_ does on one device
        torch.broadcast_tensors(*(torch.empty(t.shape, device="meta") for t in (dst, self)))
        raise


@kernel("aten::_copy_from_and_resize")
def copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    """dst.resize_as_(self).copy_(self)."""
    return copy_from(self, dst.resize_(self.shape))


@kernel("aten::_local_scalar_dense")
def local_scalar_dense(self: torch.Tensor) -> Any:
    """The value of a tensor of one element, on the host."""
    return read(self).item()


def read(source: torch.Tensor) -> torch.Tensor:
    """Wait for a device tensor and return it as a CPU tensor; a view is cut out on the host."""
    buffer = buffer_of(source.untyped_storage())
    view, target = view_of(source), executor.current().target
    if 0 in view.shape:
        return torch.empty(view.shape, dtype=source.dtype, device="cpu")
    whole = to_host(target.get(buffer.value()), buffer.layout.dtype).reshape(-1)
    if whole.dtype != source.dtype:
        whole = whole.view(source.dtype)
    return whole.as_strided(view.shape, view.strides, view.offset)


def _write_from_host(source: torch.Tensor, dst: torch.Tensor) -> None:
    source = source.detach().resolve_conj().resolve_neg().to(dst.dtype)
    buffer, view = buffer_of(dst.untyped_storage()), view_of(dst)
    layout = buffer.layout
    if views.covers(view, layout.shape, layout.type.dtype):
        dense = torch.empty_strided(view.shape, view.strides, dtype=dst.dtype, device="cpu")
        dense.copy_(source)
        order = sorted(range(dense.dim()), key=lambda d: (-view.strides[d], d))
        host = tensor.host_array(dense.permute(order)).reshape(layout.shape)
        buffer.overwrite(host)
    else:
        torch.ops.aten.copy_.default(dst, from_host(source.contiguous()))


def _check_factory(
    device: torch.device | None, layout: torch.layout | None, pin_memory: bool | None
) -> None:
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    if layout not in (None, torch.strided):
        raise TpuError(f"[empty] expected layout torch.strided on tpu, got {layout}")
    if device is not None and device.index not in (None, 0):
        raise TpuError(
            f"[empty] expected device tpu:0, got {device}: a process drives one TPU device; "
            "start one process per device (torchrun) for more"
        )
