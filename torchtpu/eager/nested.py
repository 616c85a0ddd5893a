"""Nested tensors: jagged ones padded and back, and strided ones, made of ops on a buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchtpu.eager import view_ops
from torchtpu.eager.abstract import needs_values
from torchtpu.eager.dynamic import bucket, first
from torchtpu.eager.schema import overload
from torchtpu.eager.sparse import borrow, elementwise, kernel
from torchtpu.private import torch as private

_KEYS = private.DispatchKey
_UNARY = "abs cos gelu isinf isnan isneginf isposinf logical_not neg relu sgn silu sin sqrt tanh"
_COMPOSED = """
    _nested_tensor_size _nested_tensor_strides _nested_tensor_storage_offsets alias detach clone
    copy_ empty_like ones_like _to_copy values unbind.int select.int view transpose.int squeeze
    squeeze.dim squeeze.dims unsqueeze split_with_sizes chunk narrow cat is_same_size is_pinned
    add.Tensor add_.Tensor sub.Tensor mul.Tensor mul_.Tensor mul.Scalar mul_.Scalar div.Tensor
    div.Scalar eq.Tensor where.self fill_.Scalar fill_.Tensor zero_
    normal_ masked_fill.Scalar linear linear_backward matmul.out matmul_backward _softmax
    _softmax_backward_data _safe_softmax _nested_tensor_softmax_with_shape native_dropout
    native_dropout_backward threshold_backward gelu_backward silu_backward embedding
    to_padded_tensor all.dim _nested_select_backward
    value_selecting_reduction_backward where.self_out
"""
_OF_DENSE = """
    _nested_tensor_from_mask_left_aligned
"""

KERNELS: dict[str, Callable[..., Any]] = {}  # of dispatch key NestedTensorPrivateUse1


def _derived(name: str) -> Callable[..., Any]:
    from torchtpu.eager import dispatch

    return dispatch.derived[name]


_torchs_view_from_buffer: Callable[..., Any] = (
    torch.ops.aten._nested_view_from_buffer.default._op_dk
)
_library = torch.library.Library("torchtpu", "FRAGMENT")
_library.define(
    "jagged_to_padded(Tensor values, Tensor offsets, int longest, Scalar padding) -> Tensor"
)
_library.define("padded_to_jagged(Tensor dense, Tensor offsets, int rows) -> Tensor")


def _padded_meta(
    values: torch.Tensor, offsets: torch.Tensor, longest: int, padding: float
) -> torch.Tensor:
    return values.new_empty((offsets.shape[0] - 1, longest, *values.shape[1:]))


def _jagged_meta(dense: torch.Tensor, offsets: torch.Tensor, rows: int) -> torch.Tensor:
    return dense.new_empty((rows, *dense.shape[2:]))


_library.impl("jagged_to_padded", _padded_meta, "CompositeExplicitAutograd")
_library.impl("padded_to_jagged", _jagged_meta, "CompositeExplicitAutograd")


def _one_jagged_dim(name: str, offsets: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(offsets) != 1:
        raise RuntimeError(f"{name}(): expected one jagged dim, got offsets of {len(offsets)}")
    return offsets[0]


@view_ops.kernel("aten::_jagged_to_padded_dense_forward")
def jagged_to_padded(
    values: torch.Tensor,
    offsets: Sequence[torch.Tensor],
    max_lengths: Sequence[int],
    padding_value: float = 0.0,
) -> torch.Tensor:
    """[rows, ...] -> [sequences, longest, ...]."""
    starts = _one_jagged_dim("_jagged_to_padded_dense_forward", offsets)
    if len(max_lengths) != 1:
        raise RuntimeError(
            f"_jagged_to_padded_dense_forward(): expected one length, got {list(max_lengths)}"
        )
    padded: torch.Tensor = _derived("torchtpu::jagged_to_padded")(
        values, starts, max_lengths[0], padding_value
    )
    return padded


@view_ops.kernel("aten::_padded_dense_to_jagged_forward")
def padded_to_jagged(
    dense: torch.Tensor, offsets: Sequence[torch.Tensor], total_L: int | None = None
) -> torch.Tensor:
    """[sequences, longest, ...] -> [rows, ...]; the host reads how many rows, unless it is told."""
    name = "_padded_dense_to_jagged_forward"
    starts = _one_jagged_dim(name, offsets)
    if total_L is None:
        needs_values(name, starts)
        ends = starts.cpu()
        total_L = int(ends[-1])
        longest = int(ends.diff().max()) if len(ends) > 1 else 0
        if longest > dense.shape[1]:
            raise RuntimeError(
                f"{name}(): found batch item of length {longest} when max length specified by "
                f"padded input is {dense.shape[1]}"
            )
    rows: torch.Tensor = _derived("torchtpu::padded_to_jagged")(dense, starts, bucket(total_L))
    return first(rows, total_L)


def _table(name: str, table: torch.Tensor, rank: int = 2) -> torch.Tensor:
    """A table of sizes, strides or offsets as torch reads it: int64, contiguous, on the host."""
    if table.dim() != rank or table.dtype != torch.int64:
        raise RuntimeError(
            f"[{name}] expected an int64 tensor of {rank} dims, got {table.dtype} of {table.dim()}"
        )
    return table.cpu().contiguous()


@view_ops.kernel("aten::_nested_view_from_buffer")
def view_from_buffer(
    self: torch.Tensor,
    nested_size: torch.Tensor,
    nested_strides: torch.Tensor,
    offsets: torch.Tensor,
) -> torch.Tensor:
    """A nested tensor on the storage of a flat one."""
    name = "_nested_view_from_buffer"
    sizes, strides = _table(name, nested_size), _table(name, nested_strides)
    starts = _table(name, offsets, rank=1)
    if sizes.shape != strides.shape or len(sizes) != len(starts):
        raise RuntimeError(
            f"[{name}] expected as many sizes as strides and offsets, got {list(sizes.shape)}, "
            f"{list(strides.shape)} and {list(starts.shape)}"
        )
    made: torch.Tensor = _torchs_view_from_buffer(_KEYS.CPU, self, sizes, strides, starts)
    return made


@view_ops.kernel("aten::_nested_from_padded")
def from_padded(
    padded: torch.Tensor, cpu_nested_shape_example: torch.Tensor, fuse_transform_0213: bool = False
) -> torch.Tensor:
    """The parts of a padded tensor that have these sizes."""
    name = "_nested_from_padded"
    sizes = _table(name, cpu_nested_shape_example)
    if tuple(sizes.shape) != (padded.shape[0], padded.dim() - 1 - fuse_transform_0213):
        raise RuntimeError(
            f"[{name}] expected sizes [{padded.shape[0]}, "
            f"{padded.dim() - 1 - fuse_transform_0213}], got {list(sizes.shape)}"
        )
    return _torchs_from_padded(padded, sizes, fuse_transform_0213)


@view_ops.kernel("aten::_nested_compute_contiguous_strides_offsets")
def contiguous_strides_offsets(nested_size: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Strides and offsets of parts that lie behind each other; sizes belong on the host."""
    strides, offsets = torch.ops.aten._nested_compute_contiguous_strides_offsets.default(
        _table("_nested_compute_contiguous_strides_offsets", nested_size)
    )
    return strides.to(nested_size.device), offsets.to(nested_size.device)


def _like(values: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """A nested tensor of the shapes of another one, whose parts lie behind each other."""
    sizes = model._nested_tensor_size()
    strides, offsets = torch.ops.aten._nested_compute_contiguous_strides_offsets.default(sizes)
    made: torch.Tensor = torch.ops.aten._nested_view_from_buffer.default(
        values.reshape(-1), sizes, strides, offsets
    )
    return made


def _exact(op: Any, key: private.DispatchKey) -> Callable[..., torch.Tensor]:
    """Torch's kernel, and a storage of just the elements: torch takes all of it for the values."""

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = op._op_dk(key, *args, **kwargs)
        values, count = made.values(), made.numel()
        return made if values.numel() == count else _like(values[:count].clone(), made)

    return call


def _compared(compare: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(self: torch.Tensor, other: Any) -> torch.Tensor:
        return _like(compare(self.contiguous().values(), other), self)

    return call


def _from_parts(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten._nested_tensor_from_tensor_list.default(list(parts))
    return made


@kernel("aten::sum.dim_IntList", KERNELS)
def sum_dims(
    self: torch.Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The sums over the last dim, which stays with size 1."""
    if tuple(dim or ()) not in ((-1,), (self.dim() - 1,)) or not keepdim or dtype is not None:
        raise RuntimeError(
            "sum of nested tensors: expected only the last dim, keepdim=True and no dtype, got "
            f"dim={dim}, keepdim={keepdim}, dtype={dtype}"
        )
    return _from_parts([part.sum(-1, keepdim=True) for part in self.unbind()])


@kernel("aten::_nested_sum_backward", KERNELS)
def sum_backward(
    grad: torch.Tensor, self: torch.Tensor, dim: Sequence[int] | None, keepdim: bool = False
) -> torch.Tensor:
    """The gradient of a sum over the last dim."""
    pairs = zip(grad.unbind(), self.unbind(), strict=True)
    return _from_parts([g.expand(part.shape) for g, part in pairs])


@kernel("aten::native_layer_norm", KERNELS)
def layer_norm(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer normalization of the rows of all parts together."""
    rows = input.contiguous().values().reshape(-1, *normalized_shape)
    out, mean, rstd = torch.native_layer_norm(rows, list(normalized_shape), weight, bias, eps)
    return _like(out, input), mean, rstd


@kernel("aten::native_layer_norm_backward", KERNELS)
def layer_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  # the schema's name
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: list[bool],
) -> tuple[torch.Tensor, ...]:
    """The gradients of the input, the weight and the bias."""
    shape = list(normalized_shape)
    rows, grads = (t.contiguous().values().reshape(-1, *shape) for t in (input, grad_out))
    of_rows, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward.default(
        grads, rows, shape, mean, rstd, weight, bias, output_mask
    )
    return _like(of_rows, input) if output_mask[0] else of_rows, of_weight, of_bias


for _name in ("matmul", "bmm", "_nested_from_padded_and_nested_example"):
    KERNELS[f"aten::{_name}"] = _exact(overload(f"aten::{_name}"), _KEYS.NestedTensorCPU)
for _name, _compare in (("eq", torch.eq), ("ge", torch.ge), ("gt", torch.gt)):
    KERNELS[f"aten::{_name}.Scalar"] = _compared(_compare)
_torchs_from_padded = _exact(overload("aten::_nested_from_padded"), _KEYS.CPU)
view_ops.kernel("aten::_nested_tensor_from_mask")(
    _exact(overload("aten::_nested_tensor_from_mask"), _KEYS.CPU)
)
borrow(KERNELS, _KEYS.NestedTensorCPU, _COMPOSED + elementwise(_UNARY))
borrow(view_ops.KERNELS, _KEYS.CPU, _OF_DENSE)


@kernel("aten::_transformer_encoder_layer_fwd", KERNELS)
def encoder_layer(src: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """An encoder layer in evaluation, on the padded sequences; their padding is masked."""
    weights, rest = arguments[:17], arguments[17:]
    if any(given is not None for given in rest):
        raise RuntimeError(
            f"[_transformer_encoder_layer_fwd] expected no mask for a nested tensor, got {rest}"
        )
    sizes, padded = src._nested_tensor_size(), src.to_padded_tensor(0.0)
    place = torch.arange(padded.shape[1], device="cpu")
    padding = (place >= sizes[:, :1]).to(src.device)  # [sequences, longest]
    layer = torch.ops.aten._transformer_encoder_layer_fwd.default
    return from_padded(layer(padded, *weights, padding, 1), sizes)
