"""Views, set_ and resize_: ops that change which elements a tensor names, never the elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from torchtpu import dtypes, tensor, views
from torchtpu.eager.abstract import needs_values
from torchtpu.errors import TpuError
from torchtpu.private import torch as private
from torchtpu.storage import Buffer, Layout, buffer_of, physical_layout
from torchtpu.tensor import alias, view_of

KERNELS: dict[str, Callable[..., Any]] = {}


_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def kernel(name: str) -> Callable[[_Kernel], _Kernel]:
    """Enter a hand-written kernel under an overload's name."""

    def enter(fn: _Kernel) -> _Kernel:
        KERNELS[name] = fn
        return fn

    return enter


_composite_as_strided_: Callable[..., torch.Tensor] = torch.ops.aten.as_strided_.default._op_dk
_CPU = private.DispatchKey.CPU  # its kernels of views touch no element, and check bounds
_cpus_as_strided: Callable[..., Any] = torch.ops.aten.as_strided.default._op_dk
_cpus_view: Callable[..., Any] = torch.ops.aten.view.default._op_dk
_COMPOSITE = private.DispatchKey.CompositeExplicitAutogradNonFunctional


@kernel("aten::as_strided_")
def _set_strided(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | torch.SymInt | None = None,
) -> torch.Tensor:
    """Give a tensor other sizes and strides in place: the way in which every view is made."""
    buffer = getattr(self.untyped_storage(), "_tpu_buffer", None)
    if buffer is not None:  # else a stand-in of torch.compile, which has no memory
        buffer.natural = None
    return _composite_as_strided_(_COMPOSITE, self, size, stride, storage_offset)


@kernel("aten::view.dtype")
def view_dtype(self: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same bytes as another dtype."""
    buffer_of(self.untyped_storage()).natural = None
    made: torch.Tensor = torch.ops.aten.view.dtype._op_dk(
        private.DispatchKey.CompositeExplicitAutograd, self, dtype
    )
    return made


@kernel("aten::as_strided")
def as_strided(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """A view with these sizes and strides, checked against the bounds of the storage."""
    buffer_of(self.untyped_storage()).natural = None
    made: torch.Tensor = _cpus_as_strided(_CPU, self, size, stride, storage_offset)
    return made


@kernel("aten::_unsafe_view")
@kernel("aten::view")
def view(self: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """The same elements in another shape, where strides allow it."""
    buffer_of(self.untyped_storage()).natural = None
    made: torch.Tensor = _cpus_view(_CPU, self, size)
    return made


@kernel("aten::_reshape_alias")
def reshape_alias(self: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A view with sizes and strides that torch has computed."""
    return _set_strided(alias(self), size, stride, self.storage_offset())


@kernel("aten::unfold")
def unfold(self: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """Sliding windows of `size` along a dim as a view."""
    like = meta_view(self).unfold(dimension, size, step)
    return _set_strided(alias(self), like.shape, like.stride(), self.storage_offset())


@kernel("aten::view_as_real")
def view_as_real(self: torch.Tensor) -> torch.Tensor:
    """[...] complex -> [..., 2] real, the same bytes."""
    return _as_dtype(self, torch.view_as_real(meta_view(self)))


@kernel("aten::view_as_complex")
def view_as_complex(self: torch.Tensor) -> torch.Tensor:
    """[..., 2] real -> [...] complex, the same bytes."""
    return _as_dtype(self, torch.view_as_complex(meta_view(self)))


@kernel("aten::set_.source_Storage_storage_offset")
def set_storage_strided(
    self: torch.Tensor,
    source: torch.UntypedStorage,
    storage_offset: int,
    size: Sequence[int],
    stride: Sequence[int] = (),
) -> torch.Tensor:
    """Make self a view of another storage."""
    strides = tuple(stride) or views.contiguous_strides(tuple(size))
    _bind(self, source, tuple(size), strides, storage_offset)
    return self


@kernel("aten::set_.source_Storage")
def set_storage(self: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    """Make self a flat view of a whole storage."""
    _bind(self, source, (source.nbytes() // self.element_size(),), (1,), 0)
    return self


@kernel("aten::set_.source_Tensor")
def set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Make self share the storage and the shape of another tensor."""
    _bind(
        self,
        source.untyped_storage(),
        tuple(source.shape),
        source.stride(),
        int(source.storage_offset()),
    )
    return self


@kernel("aten::set_")
def set_empty(self: torch.Tensor) -> torch.Tensor:
    """Make self an empty tensor with a storage of its own."""
    self.data = tensor.empty((0,), self.dtype)
    return self


@kernel("aten::resize_")
def resize(
    self: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """Change the shape; a storage that is too small grows, its first elements are kept."""
    like = torch.empty(tuple(size), dtype=self.dtype, device="meta")
    if memory_format is not None and memory_format != torch.preserve_format:
        like = like.to(memory_format=memory_format)
    shape, strides, offset = tuple(size), tuple(like.stride()), int(self.storage_offset())
    needed = views.needed_elements(views.View(shape, strides, offset, dtypes.to_numpy(self.dtype)))
    storage = self.untyped_storage()
    if needed * self.element_size() > storage.nbytes():
        # torch's storage cannot grow in place without an allocator: the tensor gets a new one.
        grown = tensor.empty(shape, self.dtype, strides)
        if self.numel() and storage.nbytes():
            old = self.as_strided((storage.nbytes() // self.element_size(),), (1,), 0)
            flat = grown.as_strided((old.numel(),), (1,), 0)
            flat.copy_(old)
        self.data = grown
        return self
    return _set_strided(self, shape, strides, offset)


@kernel("aten::_resize_output_")
def resize_output(
    self: torch.Tensor, size: Sequence[int], device: torch.device | None = None
) -> torch.Tensor:
    """Give an out= tensor the result's shape, with torch's warning where it was not empty."""
    del device
    like = torch.empty(self.shape, dtype=self.dtype, device="meta")
    torch.ops.aten._resize_output_.default(like, size, like.device)
    return self.resize_(size)


@kernel("aten::is_set_to")
def is_set_to(self: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether both name the same elements of the same storage in the same shape."""
    ours, theirs = self.untyped_storage(), tensor.untyped_storage()
    same = ours.data_ptr() == theirs.data_ptr() and self.dtype == tensor.dtype
    return same and view_of(self) == view_of(tensor)


def tensor_split(
    self: torch.Tensor, tensor_indices_or_sections: torch.Tensor, dim: int = 0
) -> list[torch.Tensor]:
    """Split at places, or in as many parts as, a tensor on the host or on the device says."""
    if tensor_indices_or_sections.device.type == "tpu":
        needs_values("tensor_split", tensor_indices_or_sections)
    where = tensor_indices_or_sections.cpu()
    if isinstance(where, private.FakeTensor):  # torch.compile then breaks its graph
        raise private.DataDependentOutputException(
            torch.ops.aten.tensor_split.tensor_indices_or_sections
        )
    made: list[torch.Tensor] = torch.ops.aten.tensor_split.tensor_indices_or_sections._op_dk(
        private.DispatchKey.CompositeImplicitAutograd, self, where, dim
    )
    return made


COMPOSITES = {"aten::tensor_split.tensor_indices_or_sections": tensor_split}  # with autograd above


@kernel("aten::record_stream")
def record_stream(self: torch.Tensor, s: torch.Stream) -> None:
    """Nothing to record: the device has one queue, and memory is freed in its order."""
    del self, s


def _bind(
    self: torch.Tensor,
    storage: torch.UntypedStorage,
    shape: tuple[int, ...],
    strides: Sequence[int],
    offset: int,
) -> None:
    if storage.device.type != "tpu":
        raise TpuError(f"[set_] expected a storage on tpu, got one on {storage.device}")
    buffer = buffer_of(storage)
    if buffer.layout.dtype != self.dtype and buffer.layout.nbytes % self.element_size() == 0:
        _retype(buffer, self.dtype, shape, tuple(strides), offset)
    _rebind(self, storage, shape, strides, offset)


_set_from_storage: Any = torch.ops.aten.set_.source_Storage_storage_offset


def _rebind(
    self: torch.Tensor,
    storage: torch.UntypedStorage,
    shape: tuple[int, ...],
    strides: Sequence[int],
    offset: int,
) -> torch.Tensor:
    buffer_of(storage).natural = None
    made: torch.Tensor = _set_from_storage._op_dk(
        private.DispatchKey.CPU, self, storage, offset, list(shape), list(strides)
    )
    return made


def _retype(
    buffer: Buffer,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> None:
    """Keep bytes that came without a dtype (a loaded file) under that of their first tensor."""
    layout = Layout.of((buffer.layout.nbytes // dtype.itemsize,), dtype)
    own, order = physical_layout(shape, strides, dtype)
    if order is not None and offset == 0 and own.nbytes == layout.nbytes:
        layout = own
    buffer.convert(layout)


def viewed(base: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return another view of a tensor's storage: sizes, strides, offset and dtype of a meta one."""
    if base.dtype != like.dtype:
        return _as_dtype(base, like)
    return _set_strided(alias(base), like.shape, like.stride(), like.storage_offset())


def _as_dtype(self: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """An alias of another dtype with the sizes, strides and offset that torch gives on meta."""
    other = torch.ops.aten.view.dtype._op_dk(
        private.DispatchKey.CompositeExplicitAutograd,
        alias(self).as_strided((0,), (1,)),
        like.dtype,
    )
    return _set_strided(other, like.shape, like.stride(), like.storage_offset())


def meta_view(self: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor with the sizes, strides, offset and dtype of a device tensor."""
    reach = views.needed_elements(tensor.view_of(self))
    like = torch.empty(reach, dtype=self.dtype, device="meta")
    return like.as_strided(self.shape, self.stride(), self.storage_offset())
