"""Ops whose result's shape depends on values: the host reads a size, then a static program runs.

Sizes read from data are rounded up to a power of two for the program and the result is a view of
the first elements, so that an op compiles at most log2(largest size) programs per input shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from torchtpu import tensor
from torchtpu.eager import copy_ops
from torchtpu.eager.abstract import needs_values
from torchtpu.eager.view_ops import kernel
from torchtpu.tensor import alias

_library = torch.library.Library("torchtpu", "DEF")


def _define(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Define an op of static shape that a family lowers under "torchtpu::name", and its meta."""
    name = schema.partition("(")[0]
    _library.define(schema)

    def enter(meta: Callable[..., Any]) -> Callable[..., Any]:
        _library.impl(name, meta, "CompositeExplicitAutograd")

        def call(*args: Any, **kwargs: Any) -> Any:
            return _derived(f"torchtpu::{name}")(*args, **kwargs)

        call.__doc__ = meta.__doc__
        return call

    return enter


def _derived(name: str) -> Callable[..., Any]:
    from torchtpu.eager import dispatch

    return dispatch.derived[name]


def _meta_like(
    self: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None
) -> torch.Tensor:
    return self.new_empty(tuple(shape), dtype=dtype or self.dtype)


@_define("arange(Scalar start, Scalar step, int length, ScalarType dtype) -> Tensor")
def _arange(start: Any, step: Any, length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(length, dtype=dtype, device="meta")


@_define("nonzero(Tensor self, int size) -> Tensor")
def _nonzero(self: torch.Tensor, size: int) -> torch.Tensor:
    return _meta_like(self, (size, self.dim()), torch.int64)


@_define("masked_select(Tensor self, Tensor mask, int size) -> Tensor")
def _masked_select(self: torch.Tensor, mask: torch.Tensor, size: int) -> torch.Tensor:
    return _meta_like(self, (size,))


@_define("bincount(Tensor self, Tensor? weights, int size) -> Tensor")
def _bincount(self: torch.Tensor, weights: torch.Tensor | None, size: int) -> torch.Tensor:
    if weights is None:
        return _meta_like(self, (size,), torch.int64)
    dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    return _meta_like(weights, (size,), dtype)


@_define("repeat_interleave(Tensor repeats, int size) -> Tensor")
def _repeat_interleave(repeats: torch.Tensor, size: int) -> torch.Tensor:
    return _meta_like(repeats, (size,))


@_define("equal_values(Tensor self, Tensor other) -> Tensor")
def _equal_values(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return _meta_like(self, (), torch.bool)


@_define("distinct(Tensor self, bool sort) -> (Tensor, Tensor, Tensor, Tensor)")
def _distinct(self: torch.Tensor, sort: bool) -> tuple[torch.Tensor, ...]:
    rows = (self.shape[0],)
    return (
        _meta_like(self, self.shape),
        _meta_like(self, rows, torch.int64),
        _meta_like(self, rows, torch.int64),
        _meta_like(self, (), torch.int64),
    )


@_define("distinct_parts(Tensor rows, Tensor starts, int size) -> (Tensor, Tensor)")
def _distinct_parts(
    rows: torch.Tensor, starts: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return _meta_like(rows, (size, *rows.shape[1:])), _meta_like(starts, (size,))


def bucket(count: int, most: int | None = None) -> int:
    """Return the power of two at or above a count (1 for none), or `most` where that is less."""
    size = 1 << max(count - 1, 0).bit_length()
    return size if most is None else min(size, max(most, 1))


def first(padded: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first `count` rows of a result as a view of it."""
    if padded.shape[0] == count:
        return padded
    shape = (count, *padded.shape[1:])
    view: torch.Tensor = torch.ops.aten.as_strided_.default(
        alias(padded), shape, padded.stride(), padded.storage_offset()
    )
    return view


def _count_nonzero(mask: torch.Tensor, op: str) -> int:
    needs_values(op)
    return int(torch.count_nonzero(mask).item())


@kernel("aten::_foreach_copy_")
def foreach_copy_(
    self: Sequence[torch.Tensor], src: Sequence[torch.Tensor], non_blocking: bool = False
) -> None:
    """self[i][...] = src[i]: one program where all are on the device."""
    if all(t.device.type == "tpu" for t in (*self, *src)):
        _derived("aten::_foreach_copy_")(self, src)
        return
    for target, source in zip(self, src, strict=True):
        target.copy_(source, non_blocking)


@kernel("aten::arange.start_step")
def arange(
    start: Any,
    end: Any,
    step: Any = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """start, start + step, ... below end: one program per length."""
    copy_ops._check_factory(device, layout, pin_memory)
    types = (type(start), type(end), type(step))
    length, dtype = _arange_type(start, end, step, types, dtype)
    made: torch.Tensor = _arange(start, step, length, dtype)
    return made


_ranged: Callable[..., torch.Tensor] = arange


@kernel("aten::arange.start")
def arange_from(start: Any, end: Any, **options: Any) -> torch.Tensor:
    """start, start + 1, ... below end."""
    return _ranged(start, end, **options)


@kernel("aten::arange")
def arange_below(end: Any, **options: Any) -> torch.Tensor:
    """0, 1, ... below end."""
    return _ranged(0, end, **options)


@lru_cache(maxsize=4096)
def _arange_type(
    start: Any, end: Any, step: Any, types: tuple[type, ...], dtype: torch.dtype | None
) -> tuple[int, torch.dtype]:
    like = torch.arange(start, end, step, dtype=dtype, device="meta")
    return like.shape[0], like.dtype


@kernel("aten::nonzero")
def nonzero(self: torch.Tensor) -> torch.Tensor:
    """Indices of the elements that are not 0, one row each, and dim by dim in memory."""
    count = _count_nonzero(self, "nonzero")
    found = first(_nonzero(self, bucket(count, self.numel())), count)
    return torch.empty_strided(
        found.shape, (1, max(count, 1)), dtype=found.dtype, device=found.device
    ).copy_(found)


@kernel("aten::masked_select")
def masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements where mask is true, in order."""
    if mask.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    self, mask = torch.broadcast_tensors(self, mask)
    count = _count_nonzero(mask, "masked_select")
    return first(_masked_select(self, mask, bucket(count, mask.numel())), count)


@kernel("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """Each index as often as repeats says."""
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    if output_size is None:
        needs_values("repeat_interleave")
        if int(repeats.min().item()) < 0:
            raise RuntimeError("repeats can not be negative")
    count = int(repeats.sum().item()) if output_size is None else output_size
    return first(_repeat_interleave(repeats, bucket(count)), count)


@kernel("aten::equal")
def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors have the same shape and elements."""
    if self.device != other.device:
        raise RuntimeError(
            "Cannot compare two tensors on different devices. "
            f"Got: {self.device} and {other.device}"
        )
    if self.shape != other.shape:
        return False
    return self.numel() == 0 or bool(_equal_values(self, other).item())


@kernel("aten::bincount")
def bincount(
    self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    """How often each number from 0 to the largest occurs, or the sum of its weights."""
    if self.dim() != 1 or self.is_floating_point() or self.is_complex():
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    needs_values("bincount")
    low, high = (int(v.item()) for v in torch.aminmax(self))
    if low < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    count = max(high + 1, minlength)
    return first(_bincount(self, weights, bucket(count)), count)


def _unique(
    rows: torch.Tensor, *, sort: bool, inverse: bool, counts: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distinct rows, the number of the distinct row of each row, and how often each occurs."""
    if rows.is_complex():
        name = "ComplexFloat" if rows.dtype == torch.complex64 else "ComplexDouble"
        raise NotImplementedError(f"\"unique\" not implemented for '{name}'")
    none = tensor.empty((0,), torch.int64)
    if rows.shape[0] == 0:
        return torch.empty_like(rows, memory_format=torch.contiguous_format), none, none
    needs_values("unique")
    ordered, starts, place, number = _distinct(rows, sort)
    count = int(number.item())
    found, often = _distinct_parts(ordered, starts, bucket(count, rows.shape[0]))
    return first(found, count), place if inverse else none, first(often, count) if counts else none


@kernel("aten::_unique2")
def unique2(
    self: torch.Tensor,
    sorted: bool = True,  # noqa: A002  # the schema's name
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The distinct elements in order."""
    found, place, often = _unique(
        self.reshape(-1), sort=True, inverse=return_inverse, counts=return_counts
    )
    return found, place.view(self.shape) if return_inverse else place, often


@kernel("aten::_unique")
def unique(
    self: torch.Tensor,
    sorted: bool = True,  # noqa: A002  # the schema's name
    return_inverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct elements in order."""
    rows = self.reshape(-1)
    found, place, _ = _unique(rows, sort=True, inverse=return_inverse, counts=False)
    return found, place.view(self.shape) if return_inverse else place


@kernel("aten::unique_consecutive")
def unique_consecutive(
    self: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first element of each run of equal ones."""
    if dim is not None:
        return _unique_slices(self, dim, sort=False)
    found, place, often = _unique(
        self.reshape(-1), sort=False, inverse=return_inverse, counts=return_counts
    )
    return found, place.view(self.shape) if return_inverse else place, often


@kernel("aten::unique_dim")
def unique_dim(
    self: torch.Tensor,
    dim: int,
    sorted: bool = True,  # noqa: A002  # the schema's name
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The distinct slices along dim in order; as on the CPU always with both other results."""
    return _unique_slices(self, dim, sort=True)


@kernel("aten::unique_dim_consecutive")
def unique_dim_consecutive(
    self: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first slice of each run of equal ones along dim."""
    return _unique_slices(self, dim, sort=False)


def _unique_slices(
    self: torch.Tensor, dim: int, *, sort: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = self.movedim(dim, 0)
    if self.numel() == 0 and self.shape[dim] != 0:
        raise RuntimeError(
            "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
        )
    flat = rows.reshape(rows.shape[0], -1) if rows.numel() else rows.reshape(0, 1)
    found, place, often = _unique(flat, sort=sort, inverse=True, counts=True)
    return found.reshape(found.shape[0], *rows.shape[1:]).movedim(0, dim), place, often


@kernel("aten::index.Tensor")
def index(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """self[indices]; a mask counts as the indices of its true elements."""
    masks = [i for i in indices if _is_mask(i)]
    if not masks:
        return _gathered(self, indices)
    if len(masks) == 1 and sum(i is not None for i in indices) == 1:
        return _index_by_mask(self, indices)
    return _gathered(self, _expanded(self, indices))


def _gathered(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    result: torch.Tensor = _derived("aten::index.Tensor")(self, _moved(self, indices))
    return result


def _moved(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Indices may be CPU tensors, as for every accelerator of torch."""
    return [i if i is None or i.device == self.device else i.to(self.device) for i in indices]


@kernel("aten::index_put_")
def index_put_(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """self[indices] = values; one value behind one mask is a select of static shape."""
    masks = [i for i in indices if i is not None and _is_mask(i)]
    if not masks:
        _derived("aten::index_put_")(self, _moved(self, indices), values, accumulate)
        return self
    only = len(masks) == 1 and sum(i is not None for i in indices) == 1
    if only and values.numel() == 1 and not accumulate:
        dim = next(d for d, i in enumerate(indices) if i is not None)
        mask = masks[0].to(self.device, torch.bool)
        _check_mask(self, mask, dim)
        behind = (1,) * (self.dim() - dim - mask.dim())
        self.masked_fill_(mask.reshape((*mask.shape, *behind)), values.reshape(()).to(self.dtype))
        return self
    places = _moved(self, _expanded(self, indices))
    _derived("aten::index_put_")(self, places, values, accumulate)
    return self


@kernel("aten::_index_put_impl_")
def index_put_impl_(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    """self[indices] = values."""
    index_put_(self, indices, values, accumulate)
    return self


@kernel("aten::index_put")
def index_put(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """A copy of self with self[indices] = values."""
    if any(_is_mask(i) for i in indices):
        copy = self.clone()
        index_put_(copy, indices, values, accumulate)
        return copy
    places = _moved(self, indices)
    result: torch.Tensor = _derived("aten::index_put")(self, places, values, accumulate)
    return result


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _expanded(
    self: torch.Tensor, indices: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Replace each mask by the indices of its true elements, one tensor for each of its dims."""
    expanded: list[torch.Tensor | None] = []
    for i in indices:
        if i is not None and _is_mask(i):
            _check_mask(self, i, len(expanded))
            expanded += nonzero(i.to(self.device)).unbind(1)
        else:
            expanded.append(i)
    return expanded


def _index_by_mask(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Index by one mask: its dims, flattened, are gathered in a bucket."""
    dim = next(d for d, i in enumerate(indices) if i is not None)
    mask = indices[dim]
    assert mask is not None
    _check_mask(self, mask, dim)
    mask = mask.to(self.device)
    count = _count_nonzero(mask, "index by a mask")
    places = _nonzero(mask, bucket(count, mask.numel()))
    if not mask.numel():
        places = first(places, 0)  # there may be no element that a bucket of one could name
    return _gathered(self, [None] * dim + list(places.unbind(1))).narrow(dim, 0, count)


def _check_mask(self: torch.Tensor, mask: torch.Tensor, dim: int) -> None:
    for offset, size in enumerate(mask.shape):
        if dim + offset >= self.dim():
            raise IndexError(f"too many indices for tensor of dimension {self.dim()}")
        if size != self.shape[dim + offset]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {offset} does not match the "
                f"shape of the indexed tensor {list(self.shape)} at index {dim + offset}"
            )
