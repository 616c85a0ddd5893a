"""Methods of torch.UntypedStorage for tpu storages: none may follow the storage's address.

Each either works on the device buffer or raises; the address that a tpu storage reports names it
and points at nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from torchtpu import executor, tensor
from torchtpu.errors import TpuError
from torchtpu.storage import Buffer, buffer_of

Storage = torch.UntypedStorage

_REFUSED = {
    "_share_cuda_": "shared with another process",
    "_share_fd_cpu_": "shared with another process",
    "_share_filename_cpu_": "shared with another process",
    "share_memory_": "moved to shared memory",
    "_shared_incref": "shared with another process",
    "_shared_decref": "shared with another process",
    "_get_shared_fd": "shared with another process",
    "_get_filename": "backed by a file",
    "_swap_data_ptr_": "given another address",
    "_resize_with_addr_": "given another address",
    "_set_cdata": "given another address",
    "pin_memory": "pinned",
    "mps": "copied to mps",
    "hpu": "copied to hpu",
    "cuda": "copied to cuda",
}


def install() -> None:
    """Put the methods of this file in front of torch's, for storages whose device is tpu."""
    for name, fn in _METHODS.items():
        setattr(Storage, name, _for_tpu(name, fn))
    for name, what in _REFUSED.items():
        if hasattr(Storage, name):
            setattr(Storage, name, _for_tpu(name, _refuse(name, what)))
    Storage.tpu = _to_tpu  # type: ignore[attr-defined]  # as .cuda()
    Storage.is_tpu = property(lambda self: self.device.type == "tpu")  # type: ignore[attr-defined]  # as is_cuda
    torch_new = Storage.__new__

    def new(cls: type[Storage], *args: Any, **kwargs: Any) -> Storage:
        if torch.device(kwargs.get("device") or "cpu").type != "tpu":
            return torch_new(cls, *args, **kwargs)
        if len(args) == 1 and not isinstance(args[0], int):
            return from_host(np.array(list(args[0]), np.uint8))
        return tensor.empty((args[0] if args else 0,), torch.uint8).untyped_storage()

    Storage.__new__ = new  # type: ignore[method-assign,assignment]  # the C++ one has no allocator


def from_host(data: np.ndarray[Any, Any]) -> Storage:
    """Return a tpu storage that holds these bytes."""
    return tensor.from_host(torch.from_numpy(np.ascontiguousarray(data))).untyped_storage()


def host_bytes(storage: Storage) -> np.ndarray[Any, Any]:
    """Return the bytes of a storage of any device as a uint8 array on the host."""
    if storage.device.type != "tpu":
        return torch.tensor([], dtype=torch.uint8, device="cpu").set_(storage).numpy()
    array = executor.current().target.get(buffer_of(storage).value())
    return np.frombuffer(array.tobytes(), np.uint8)


def _for_tpu(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    theirs = getattr(Storage, name, None)

    @functools.wraps(theirs or ours)
    def method(self: Storage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "tpu":
            return ours(self, *args, **kwargs)
        if theirs is None:
            raise AttributeError(f"storage on {self.device} has no attribute {name!r}")
        return theirs(self, *args, **kwargs)

    return method


def _refuse(name: str, what: str) -> Callable[..., Any]:
    def refuse(_self: Storage, *_args: Any, **_kwargs: Any) -> Any:
        raise TpuError(
            f"[storage.{name}] a storage on tpu cannot be {what}; copy it with .cpu() first"
        )

    return refuse


def _nbytes(self: Storage) -> int:
    return buffer_of(self).layout.nbytes


def _clone(self: Storage) -> Storage:
    source = buffer_of(self)
    layout = source.layout
    copy = Buffer(layout)
    copy.array = source.value()
    copy.shared = source.shared = True
    shape = layout.shape
    return tensor.factory(shape, _contiguous(shape), layout.dtype)(copy).untyped_storage()


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    from torchtpu.views import contiguous_strides

    return contiguous_strides(shape)


def _cpu(self: Storage) -> Storage:
    return torch.from_numpy(host_bytes(self).copy()).untyped_storage()


def _write(self: Storage, data: np.ndarray[Any, Any]) -> Storage:
    """Replace all bytes, keeping the buffer's layout."""
    buffer = buffer_of(self)
    dtype, shape = buffer.layout.type.dtype, buffer.layout.shape
    buffer.overwrite(np.ascontiguousarray(data).view(dtype).reshape(shape))
    return self


def _copy_(self: Storage, source: Storage, non_blocking: bool | None = None) -> Storage:
    del non_blocking
    if source.nbytes() != self.nbytes():
        raise TpuError(f"[storage.copy_] expected {self.nbytes()} bytes, got {source.nbytes()}")
    return _write(self, host_bytes(source))


def _fill_(self: Storage, value: int) -> Storage:
    return _write(self, np.full(self.nbytes(), value, np.uint8))


def _getitem(self: Storage, index: Any) -> Any:
    found = self.cpu()[index]
    return found if isinstance(found, int) else from_host(host_bytes(found))


def _setitem(self: Storage, index: Any, value: Any) -> None:
    host = self.cpu()
    host[index] = value
    _write(self, host_bytes(host))


def _iterate(self: Storage) -> Iterator[int]:
    return iter(host_bytes(self).tolist())


def _tolist(self: Storage) -> list[int]:
    return host_bytes(self).tolist()  # type: ignore[no-any-return]


def _resize_(self: Storage, nbytes: int) -> Storage:
    buffer_of(self).resize(int(nbytes))
    return self


def _byteswap(self: Storage, elem_size: Any) -> None:
    host = self.cpu()
    host._byteswap(elem_size) if isinstance(elem_size, int) else host.byteswap(elem_size)
    _write(self, host_bytes(host))


def _write_file(self: Storage, file: Any, is_real: bool, save_size: bool, itemsize: int) -> Any:
    return self.cpu()._write_file(file, is_real, save_size, _checked(itemsize))


def _set_from_file(self: Storage, file: Any, offset: Any, is_real: bool, itemsize: int) -> Storage:
    host = Storage(self.nbytes(), device="cpu")
    host._set_from_file(file, offset, is_real, _checked(itemsize))
    return _write(self, host_bytes(host))


def _checked(itemsize: int) -> int:
    if itemsize not in (1, 2, 4, 8, 16):  # torch divides by it
        raise ValueError(
            f"[storage] expected an element size of 1, 2, 4, 8 or 16 bytes, got {itemsize}"
        )
    return itemsize


def _delitem(_self: Storage, _index: Any) -> None:
    raise TypeError("'torch.UntypedStorage' object doesn't support item deletion")


def _new(self: Storage, *args: Any) -> Storage:
    return Storage(*args, device=self.device)


def _to_tpu(self: Storage, device: Any = None, non_blocking: bool = False) -> Storage:
    """Return a storage on tpu with the same bytes; the same one where it is there already."""
    del device, non_blocking
    return self if self.device.type == "tpu" else from_host(host_bytes(self))


def _no(_self: Storage, *_args: Any) -> bool:
    return False


_METHODS: dict[str, Callable[..., Any]] = {
    "nbytes": _nbytes,
    "size": _nbytes,
    "__len__": _nbytes,
    "clone": _clone,
    "cpu": _cpu,
    "copy_": _copy_,
    "fill_": _fill_,
    "__getitem__": _getitem,
    "__setitem__": _setitem,
    "__delitem__": _delitem,
    "__iter__": _iterate,
    "tolist": _tolist,
    "resize_": _resize_,
    "resizable": lambda _self: True,
    "byteswap": _byteswap,
    "_byteswap": _byteswap,
    "_write_file": _write_file,
    "_set_from_file": _set_from_file,
    "new": _new,
    "is_shared": _no,
    "is_pinned": _no,
}
