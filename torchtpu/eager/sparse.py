"""Sparse tensors in coordinate form: how they are made, coalesced, converted and copied.

Such a tensor holds dense indices [sparse dims, nnz] and values [nnz, ...]; every op on it is ops on
these two. Torch's own kernels that are written that way are called as they are (`borrow`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from torchtpu.eager import view_ops
from torchtpu.eager.schema import overload, variants
from torchtpu.errors import UnsupportedOpError
from torchtpu.private import torch as private
from torchtpu.private.torch import pytree

KERNELS: dict[str, Callable[..., Any]] = {}  # of dispatch key SparsePrivateUse1
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])
_KEYS = private.DispatchKey

# Elementwise functions that map 0 to 0; torch applies them to the values.
UNARY = """
    abs asin asinh atan atanh ceil conj_physical deg2rad erf erfinv expm1 floor frac isinf isnan
    isneginf isposinf log1p nan_to_num neg rad2deg relu round sgn sign signbit sin sinh sqrt tan
    tanh threshold_backward trunc
"""
_COMPOSED = """
    _dimI _dimV _indices _nnz _values _coalesced_ sparse_dim dense_dim indices values is_coalesced
    _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors empty.memory_format
    empty_like clone copy_ copy_sparse_to_sparse_ sparse_resize_ sparse_resize_and_clear_
    resize_as_sparse_ zero_ zeros.out _to_dense _to_sparse _to_sparse.sparse_dim _to_sparse_csr
    _to_sparse_csc _to_sparse_bsr _to_sparse_bsc _sparse_broadcast_to permute unsqueeze cat
    narrow_copy any sum sum.dim_IntList mm mv native_norm native_norm.ScalarOpt_dim_dtype
    norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype pow.Tensor_Scalar pow.Tensor_Scalar_out div.Tensor
    div.Tensor_mode div.out div.out_mode div_.Tensor div_.Tensor_mode floor_divide
    floor_divide.out floor_divide_.Tensor sub.Tensor sub.out sub_.Tensor view_as_complex
    view_as_real is_pinned
"""
_OF_DENSE = """
    _to_sparse _to_sparse.sparse_dim _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc
"""


def kernel(
    name: str, table: dict[str, Callable[..., Any]] = KERNELS
) -> Callable[[_Kernel], _Kernel]:
    """Enter a kernel for sparse tensors under an overload's name."""

    def enter(fn: _Kernel) -> _Kernel:
        table[name] = fn
        return fn

    return enter


def borrow(table: dict[str, Callable[..., Any]], key: private.DispatchKey, names: str) -> None:
    """Enter torch's kernels of a CPU layout that call ops and touch no element themselves."""
    known = set(private.all_op_names())
    for name in (f"aten::{n}" for n in names.split()):
        if name in known and private.has_kernel(name, key.name):
            table.setdefault(name, _borrowed(overload(name), key))


def elementwise(names: str) -> str:
    """The overloads of functions of one tensor: functional, in place and out=."""
    forms = ("", "_", ".out", ".grad_input")
    return " ".join(name + form for name in names.split() for form in forms)


def _borrowed(op: Any, key: private.DispatchKey) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return op._op_dk(key, *args, **kwargs)

    return call


def unsupported(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op without a kernel for a sparse layout: on the CPU where allowed, or an error."""
    from torchtpu import config
    from torchtpu.eager import blame, fallback
    from torchtpu.eager.dispatch import full_name

    name, has = full_name(op), private.has_kernel
    layout = _layout_key(args, kwargs)
    if not has(name, f"{layout}CPU"):
        raise NotImplementedError(
            f"Could not run '{name}' with arguments from the '{layout}PrivateUse1' backend: torch "
            f"has this operator for no device with this layout"
        )
    if config.get("fallback") == "error":
        raise UnsupportedOpError(f"{name} (of {layout} tensors)")
    if name not in fallback.counts:
        warnings.warn(
            f"[torchtpu] {name} has no kernel for {layout} tensors and runs on the CPU, first at "
            f"{blame.user_line()}",
            stacklevel=2,
        )
    fallback.counts[name] += 1
    return fallback._on_cpu(op, args, kwargs)


def _layout_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The functionality key that a call went to: of nested tensors, else of sparse ones."""
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if any(t.is_nested for t in tensors):
        return "NestedTensor"
    if any(t.layout not in (torch.strided, torch.sparse_coo) for t in tensors):
        return "SparseCsr"
    given = kwargs.get("layout")
    return "Sparse" if given in (None, torch.sparse_coo) else "SparseCsr"


def make(
    indices: torch.Tensor, values: torch.Tensor, size: Sequence[int], *, coalesced: bool = False
) -> torch.Tensor:
    """Return the sparse tensor of indices [sparse dims, nnz] and values [nnz, dense dims]."""
    made: torch.Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default(
        indices.shape[0],
        values.dim() - 1,
        list(size),
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
        pin_memory=False,
        is_coalesced=coalesced,
    )
    return made


def flat(indices: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """[dims, nnz] indices -> [nnz] numbers of the elements in row-major order."""
    number = torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
    for row, size in zip(indices.unbind(0), sizes, strict=True):
        number = number * size + row
    return number


def unflat(number: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """[nnz] numbers of elements -> [dims, nnz] indices."""
    rows = []
    for size in reversed(sizes):
        rows.append(number % size)
        number = number // size
    if not rows:
        return number.new_empty((0, number.shape[0]))
    return torch.stack(rows[::-1])


def sparse_sizes(self: torch.Tensor) -> list[int]:
    """Return the sizes of the sparse dims."""
    return list(self.shape[: self.sparse_dim()])


def sums(values: torch.Tensor, groups: torch.Tensor, count: int) -> torch.Tensor:
    """Return the sums of the rows of each group: [count, ...]."""
    wide = torch.int64 if values.dtype == torch.bool else values.dtype
    total = torch.zeros((count, *values.shape[1:]), dtype=wide, device=values.device)
    return total.index_add(0, groups, values.to(wide)).to(values.dtype)


@kernel("aten::_coalesce")
def coalesce(self: torch.Tensor) -> torch.Tensor:
    """Indices in row-major order, each once; the values of equal indices are added."""
    indices, values, sizes = self._indices(), self._values(), sparse_sizes(self)
    if self.is_coalesced():
        return self
    if self._nnz() < 2:
        return make(indices.clone(), values.clone(), self.shape, coalesced=True)
    if not sizes or math.prod(sizes) == 0:
        places = torch.zeros(self._nnz(), dtype=torch.int64, device=indices.device)
    else:
        places = flat(indices, sizes)
    found, group = torch.unique(places, return_inverse=True)
    total = sums(values, group, found.shape[0])
    return make(unflat(found, sizes), total, self.shape, coalesced=True)


def replace(self: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Give a sparse tensor the contents of another one, in its own dtype."""
    if self.layout == torch.sparse_coo:
        torch.ops.aten.copy_sparse_to_sparse_.default(self, value)
        return self
    torch.ops.aten.resize_as_sparse_.default(self, value)
    return self.copy_(value)


def with_variants(
    name: str, table: dict[str, Callable[..., Any]] = KERNELS
) -> Callable[[_Kernel], _Kernel]:
    """Enter a functional kernel and what its schema implies: the in-place and the out= overload."""

    def enter(fn: _Kernel) -> _Kernel:
        table[name] = fn
        in_place, out = variants(overload(name))
        for op in in_place:
            table[_full_name(op)] = _in_place(fn)
        for op in out:
            table[_full_name(op)] = _out(fn)
        return fn

    return enter


def _full_name(op: Any) -> str:
    from torchtpu.eager.dispatch import full_name

    return full_name(op)


def _in_place(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return write(self, fn(self, *args, **kwargs), "self")

    return call


def _out(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return write(out, fn(*args, **kwargs), "out")

    return call


def write(target: torch.Tensor, value: torch.Tensor, where: str) -> torch.Tensor:
    """Store a result in an argument: dense into dense, or sparse into sparse."""
    if target.dtype != value.dtype and not torch.can_cast(value.dtype, target.dtype):
        raise RuntimeError(
            f"result type {value.dtype} can't be cast to the desired output type {target.dtype}"
        )
    if target.layout == torch.strided:
        if where == "out" and target.shape != value.shape:
            target.resize_(value.shape)
        return target.copy_(value.to_dense() if value.layout != torch.strided else value)
    if value.layout == torch.strided:
        raise RuntimeError(f"expected a dense tensor for `{where}`, got layout {target.layout}")
    if where == "self" and target.shape != value.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(value.shape)}"
        )
    return replace(target, value)


@view_ops.kernel("aten::_embedding_bag_backward")
def embedding_bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    """The gradient of the weights of a bag of embeddings, sparse where the module asked for it."""
    from torchtpu.eager import dispatch

    options = (num_weights, scale_grad_by_freq, mode)
    bags = (grad, indices, offsets, offset2bag, bag_size)
    if sparse:
        made: torch.Tensor = torch.ops.aten._embedding_bag_sparse_backward.default(
            *bags, *options, per_sample_weights, padding_idx
        )
        return made
    dense: torch.Tensor = dispatch.derived["aten::_embedding_bag_backward"](
        *bags, maximum_indices, *options, sparse, per_sample_weights, padding_idx
    )
    return dense


borrow(KERNELS, _KEYS.SparseCPU, _COMPOSED + elementwise(UNARY))
borrow(view_ops.KERNELS, _KEYS.CPU, _OF_DENSE)
