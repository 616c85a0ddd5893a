"""Device tensors without a C++ extension: DLPack capsules of type kDLExtDev become tensors."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import count
from typing import Any, ClassVar

import numpy as np
import torch

from torchtpu import dtypes, executor, views
from torchtpu.private import torch as private
from torchtpu.storage import Buffer, physical_layout

_MAX_BYTES = 2**63 - 1
_KDL_EXT_DEV = 12  # DLDeviceType in dlpack.h; torch maps it to PrivateUse1


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [
        ("dl_tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_from_dlpack = private.from_dlpack

# Storages get distinct non-null addresses, which nothing may read: what would is replaced.
next_address = count(1 << 44, 1 << 20).__next__


class TensorFactory:
    """Makes tensors of one shape, strides and dtype, each on a new storage."""

    __slots__ = ("_keep", "layout", "order", "shape", "strides", "struct", "struct_address")

    _made: ClassVar[
        list[TensorFactory]
    ] = []  # torch reads the struct for as long as a tensor lives

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self.layout, self.order = physical_layout(shape, strides, dtype)
        if self.layout.nbytes > _MAX_BYTES:  # torch would end the process
            raise RuntimeError(
                f"Storage size calculation overflowed with sizes={list(shape)} and "
                f"strides={list(strides)}"
            )
        self.shape, self.strides = shape, strides
        row = dtypes.of(dtype)
        sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        steps = (ctypes.c_int64 * max(len(shape), 1))(*strides)
        managed = _DLManagedTensor()
        tensor = managed.dl_tensor
        tensor.device = _DLDevice(_KDL_EXT_DEV, 0)
        tensor.ndim = len(shape)
        tensor.dtype = _DLDataType(row.dlpack_code, row.bits, 1)
        tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
        self._keep = (managed, sizes, steps)
        self.struct = tensor  # its `data` is set anew for each tensor
        self.struct_address = ctypes.addressof(managed)
        TensorFactory._made.append(self)

    def __call__(self, buffer: Buffer) -> torch.Tensor:
        """Return a new tensor whose storage owns `buffer` (of this factory's layout)."""
        buffer.natural = self
        self.struct.data = next_address()
        capsule = new_capsule(self.struct_address, b"dltensor", None)
        tensor: torch.Tensor = _from_dlpack(capsule)
        tensor.untyped_storage()._tpu_buffer = buffer  # type: ignore[attr-defined]  # storages take it
        return tensor

    @property
    def is_row_major(self) -> bool:
        """Tell whether the tensor's dims are the physical dims in order."""
        return self.order == tuple(range(len(self.shape)))


@cache
def factory(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> TensorFactory:
    """Return the one factory of this shape, strides and dtype."""
    return TensorFactory(shape, strides, dtype)


def empty(
    shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None
) -> torch.Tensor:
    """Return a tensor with memory but no contents; contiguous unless `strides` says otherwise."""
    if strides is None:
        strides = views.contiguous_strides(shape)
    make = factory(shape, strides, dtype)
    buffer = Buffer(make.layout)
    executor.current().target.reserve(buffer, make.layout.nbytes)
    return make(buffer)


def view_of(tensor: torch.Tensor) -> views.View:
    """Return shape, strides, offset and dtype of a tensor as a View."""
    return views.View(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        dtypes.to_numpy(tensor.dtype),
    )


def place_of(buffer: Buffer, tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what a program depends on of a tensor that may be any part of its buffer."""
    return (
        *(buffer.layout, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype),
        *(tensor.is_conj(), tensor.is_neg()),
    )


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return another tensor object on the same storage, below autograd."""
    made: torch.Tensor = torch.ops.aten.alias.default(tensor)
    return made


def is_lazy(value: torch.Tensor) -> bool:
    """Tell whether a tensor stands for the conjugate or the negative of its stored values."""
    return value.is_conj() or value.is_neg()


def settled(value: Any) -> Any:
    """Return arguments with lazily conjugated or negated tensors replaced by their values."""
    if isinstance(value, torch.Tensor):
        return value.resolve_conj().resolve_neg() if value.device.type == "tpu" else value
    if isinstance(value, dict):
        return {k: settled(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(settled(v) for v in value)
    return value


def from_host(value: torch.Tensor) -> torch.Tensor:
    """Copy a CPU tensor to the device; strides are kept where they are dense."""
    shape, strides = tuple(value.shape), tuple(value.stride())
    layout, order = physical_layout(shape, strides, value.dtype)
    if order is None:
        value = value.contiguous()
        strides = tuple(value.stride())
        layout, order = physical_layout(shape, strides, value.dtype)
    assert order is not None, strides
    make = factory(shape, strides, value.dtype)
    buffer = Buffer(layout)
    buffer.array = executor.current().target.put(host_array(value.permute(order)))
    return make(buffer)


def host_array(value: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a CPU tensor as a numpy array of the same dtype (bfloat16 and float8 included)."""
    value = value.detach().resolve_conj().resolve_neg()
    target = dtypes.of(value.dtype).numpy
    try:
        return value.numpy()
    except TypeError:  # dtypes that numpy itself does not have travel as integers of their size
        integer = getattr(torch, f"uint{value.dtype.itemsize * 8}")
        return value.contiguous().view(integer).numpy().view(target)


def to_host(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """Return a numpy array from the device as a CPU tensor that owns its memory."""
    own = np.array(array, order="C", copy=True)
    try:
        return torch.from_numpy(own)
    except TypeError:
        integer = np.dtype(f"u{own.dtype.itemsize}")
        return torch.from_numpy(own.view(integer)).view(dtype)
