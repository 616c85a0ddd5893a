"""Products with 2:4 sparse matrices: unpacked by torch's own rules, then dense.

What cuSPARSELt packs is its own affair; here it is the kept values and CUTLASS's metadata side by
side, which takes as many elements.
"""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.eager.composed import composed
from torchtpu.eager.view_ops import kernel

_Optional = torch.Tensor | None


def _dense(values: torch.Tensor, metadata: torch.Tensor) -> torch.Tensor:
    from torch.sparse import _semi_structured_conversions as conversions

    found: torch.Tensor = conversions.sparse_semi_structured_to_dense_cutlass(values, metadata)
    return found


def _product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """left @ right in a dtype; integers are summed in int32, halves in float32."""
    if left.dtype == torch.int8:
        return torch._int_mm(left, right.contiguous()).to(dtype or torch.int8)
    if dtype == torch.float32 and left.dtype.itemsize == 2:
        left, right = left.float(), right.float()
    return (left @ right).to(dtype or left.dtype)


@composed("aten::_to_sparse_semi_structured")
def to_sparse_semi_structured(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two of each four that are kept, and where they stood."""
    from torch.sparse import _semi_structured_conversions as conversions

    values, metadata = conversions.sparse_semi_structured_from_dense_cutlass(dense)
    return values, metadata


@composed("aten::_sparse_semi_structured_mm")
def sparse_semi_structured_mm(
    mat1: torch.Tensor,
    mat1_meta: torch.Tensor,
    mat2: torch.Tensor,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """mat1 @ mat2."""
    return _product(_dense(mat1, mat1_meta), mat2, out_dtype)


@composed("aten::_sparse_semi_structured_addmm")
def sparse_semi_structured_addmm(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    mat1: torch.Tensor,
    mat1_meta: torch.Tensor,
    mat2: torch.Tensor,
    *,
    alpha: float = 1,
    beta: float = 1,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """alpha * mat1 @ mat2 + beta * input[:, None]."""
    wide = torch.int32 if mat1.dtype == torch.int8 else torch.float32
    made = _product(_dense(mat1, mat1_meta), mat2, wide) * alpha
    return (made + beta * input.unsqueeze(1)).to(out_dtype or mat1.dtype)


@composed("aten::_sparse_semi_structured_linear")
def sparse_semi_structured_linear(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    weight: torch.Tensor,
    meta: torch.Tensor,
    *,
    bias: _Optional = None,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """activation(input @ weight^T + bias)."""
    rows = input.reshape(-1, input.shape[-1])
    made = _product(rows, _dense(weight, meta).t(), out_dtype)
    made = made if bias is None else made + bias
    if activation not in (None, "none"):
        made = torch.relu(made) if activation == "relu" else torch.nn.functional.silu(made)
    return made.reshape(*input.shape[:-1], weight.shape[0])


@composed("aten::_cslt_compress")
def cslt_compress(input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # the schema's name
    """[M, K] -> [M, 9/16 K], or 10/16 K in 8 bits: values, then metadata."""
    own = input.view(torch.int8) if input.dtype.itemsize == 1 else input
    values, metadata = to_sparse_semi_structured(own)
    return torch.cat([values, metadata.view(own.dtype)], dim=1).view(input.dtype)


@composed("aten::_cslt_sparse_mm")
def cslt_sparse_mm(
    compressed_A: torch.Tensor,
    dense_B: torch.Tensor,
    bias: _Optional = None,
    alpha: _Optional = None,
    out_dtype: torch.dtype | None = None,
    transpose_result: bool = False,
    alg_id: int = 0,
    split_k: int = 1,
    split_k_mode: int = -1,
) -> torch.Tensor:
    """alpha * A @ B + bias[:, None], or its transpose; A by _cslt_compress."""
    dtype = compressed_A.dtype
    own = torch.int8 if dtype.itemsize == 1 else dtype
    packed, half = compressed_A.view(own), dense_B.shape[0] // 2
    metadata = packed[:, half:].contiguous().view(torch.int32 if own == torch.int8 else torch.int16)
    left = _dense(packed[:, :half].contiguous(), metadata).view(dtype)
    if dtype.itemsize == 1 and dtype != torch.int8:
        left, dense_B = left.float(), dense_B.float()
    made = _product(left, dense_B, torch.int32 if dtype == torch.int8 else torch.float32)
    made = made if alpha is None else made * alpha.reshape(-1, 1)
    made = made if bias is None else made + bias.unsqueeze(1)
    made = made.to(out_dtype or dtype)
    return made.t().contiguous() if transpose_result else made


@kernel("aten::_cslt_sparse_mm_search")
def cslt_sparse_mm_search(*_: Any, **__: Any) -> int:
    """The one algorithm there is."""
    return 0
