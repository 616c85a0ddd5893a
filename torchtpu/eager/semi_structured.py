"""Products with 2:4 sparse matrices: unpacked by torch's own rules, then dense.

What cuSPARSELt packs is its own affair; here it is the kept values and CUTLASS's metadata side by
side, which takes as many elements.
"""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.eager.composed import composed
from torchtpu.eager.view_ops import kernel
from torchtpu.errors import TpuError

_Optional = torch.Tensor | None
_Packed = tuple[torch.Tensor, torch.Tensor]
_GREEDY = {"": False, "largest_values_greedy": False, "largest_abs_values_greedy": True}
_library = torch.library.Library("torchtpu", "FRAGMENT")
_library.define("greedy_2_of_4(Tensor self) -> Tensor")
_library.impl(
    "greedy_2_of_4", lambda x: torch.empty_like(x, dtype=torch.bool), "CompositeExplicitAutograd"
)


def _dense(values: torch.Tensor, metadata: torch.Tensor) -> torch.Tensor:
    from torchtpu.private.torch import semi_structured_conversions as conversions

    found: torch.Tensor = conversions.sparse_semi_structured_to_dense_cutlass(values, metadata)
    return found


def _product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """left @ right in a dtype; integers are summed in int32, halves in float32."""
    if left.dtype == torch.int8:
        product: torch.Tensor = torch.ops.aten._int_mm(left, right.contiguous())
        return product.to(dtype or torch.int8)
    if dtype == torch.float32 and left.dtype.itemsize == 2:
        left, right = left.float(), right.float()
    return (left @ right).to(dtype or left.dtype)


@composed("aten::_to_sparse_semi_structured")
def to_sparse_semi_structured(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two of each four that are kept, and where they stood."""
    from torchtpu.private.torch import semi_structured_conversions as conversions

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


def _activated(x: Any, activation: str) -> Any:
    return torch.relu(x) if activation == "relu" else torch.nn.functional.silu(x)


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
    made = made if activation in (None, "none") else _activated(made, activation)
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


def _bits(kept: torch.Tensor) -> torch.Tensor:
    """bool[M, N] -> uint8[M / 8, N / 8, 4, 2]: two bytes for each 4 x 4 tile of 8 x 8."""
    rows, columns = kept.shape
    tiles = kept.view(rows // 8, 2, 4, columns // 8, 2, 4).permute(0, 3, 1, 4, 2, 5)
    bits = tiles.reshape(rows // 8, columns // 8, 4, 2, 8).int()
    return (bits << torch.arange(8, device=kept.device)).sum(-1).to(torch.uint8)


def _of_bits(masks: torch.Tensor) -> torch.Tensor:
    """uint8[M / 8, N / 8, 4, 2] -> bool[M, N]."""
    rows, columns = masks.shape[:2]
    bits = masks.int().unsqueeze(-1) >> torch.arange(8, device=masks.device) & 1
    tiles = bits.reshape(rows, columns, 2, 2, 4, 4).permute(0, 2, 4, 1, 3, 5)
    return tiles.reshape(rows * 8, columns * 8).bool()


def _pack(x: torch.Tensor, kept: torch.Tensor) -> _Packed:
    """The kept of each four, zeros among them too, and CUTLASS's metadata of their places."""
    steps = torch.arange(1, 5, device=x.device).repeat(x.shape[1] // 4)
    places, metadata = to_sparse_semi_structured((kept * steps).to(x.dtype).contiguous())
    place = places.long() - 1  # -1: fewer than two were kept
    first = torch.arange(x.shape[1] // 4, device=x.device).mul(4).repeat_interleave(2)
    found = x.gather(1, first + place.clamp(min=0))
    return torch.where(place < 0, torch.zeros_like(found), found), metadata


def _check_halves(name: str, x: torch.Tensor) -> None:
    if x.dtype not in (torch.float16, torch.bfloat16) or x.dim() != 2:
        raise TpuError(
            f"[{name}] expected a matrix of float16 or bfloat16, got {list(x.shape)} of {x.dtype}"
        )
    if x.shape[0] % 32 or x.shape[1] % 32:
        raise TpuError(f"[{name}] expected multiples of 32 rows and columns, got {list(x.shape)}")


@composed("aten::_sparse_semi_structured_tile")
def sparse_semi_structured_tile(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    algorithm: str = "",
    use_cutlass: bool = True,
) -> tuple[torch.Tensor, ...]:
    """The pruned matrix packed, and its transpose, with their metadata, and what was kept."""
    _check_halves("_sparse_semi_structured_tile", input)
    if algorithm not in _GREEDY:
        raise TpuError(
            f"[_sparse_semi_structured_tile] expected one of {list(_GREEDY)}, got {algorithm!r}"
        )
    from torchtpu.eager import dispatch

    ranked = input.abs() if _GREEDY[algorithm] else input
    kept = dispatch.derived["torchtpu::greedy_2_of_4"](ranked.contiguous())
    packs = [_pack(x.contiguous(), k) for x, k in ((input, kept), (input.t(), kept.t()))]
    if not use_cutlass:  # as _cslt_compress lays them out
        packs = [(torch.cat([v, m.view(v.dtype)], 1), m) for v, m in packs]
    return *packs[0], *packs[1], _bits(kept)


@composed("aten::_sparse_semi_structured_apply")
def sparse_semi_structured_apply(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    thread_masks: torch.Tensor,
) -> _Packed:
    """The elements that a tile's mask keeps, packed, and those of the transpose."""
    _check_halves("_sparse_semi_structured_apply", input)
    kept = _of_bits(thread_masks)
    return _pack(input.contiguous(), kept)[0], _pack(input.t().contiguous(), kept.t())[0]


@composed("aten::_sparse_semi_structured_apply_dense")
def sparse_semi_structured_apply_dense(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    thread_masks: torch.Tensor,
) -> torch.Tensor:
    """The input, zero where a tile's mask keeps nothing."""
    return torch.where(_of_bits(thread_masks), input, torch.zeros_like(input))


_LEVELS = {8: (0, 2, 1, 3), 4: (0, 4, 1, 5, 2, 6, 3, 7)}  # places in a word
_ROWS = {
    8: (0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15),
    4: (0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
}


def _reordered(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8[K, N * bits / 8] -> levels [K, N], where torch.quantization reorders for CUTLASS."""
    depth, columns = weight.shape[0], weight.shape[1] * 8 // bits
    group, level = 16 // bits, weight.view(torch.uint8).int()
    if bits == 4:
        level = torch.stack([level & 15, level >> 4], -1)
    words = level.reshape(columns // group, -1, group, 2 * bits, 32 // bits)[..., _LEVELS[bits]]
    lines = words.transpose(1, 2).reshape(columns, depth // (128 // bits), 16, 8 // bits)
    levels: torch.Tensor = lines[:, :, _ROWS[bits]].reshape(columns, depth).t()
    return torch.sub(levels, 1 << (bits - 1))


@composed("aten::_mixed_dtypes_linear")
def mixed_dtypes_linear(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    weight: torch.Tensor,
    scale: torch.Tensor,
    *,
    bias: _Optional = None,
    activation: str | None = None,
) -> torch.Tensor:
    """activation(input @ (weight * scale) + bias); weights of 8 bits, or 4 where N is half."""
    bits = 8 if scale.numel() == weight.shape[1] else 4
    made = input.float() @ (_reordered(weight, bits).float() * scale.float())
    made = made if bias is None else made + bias.float()
    made = made if activation in (None, "", "none") else _activated(made, activation)
    found: torch.Tensor = made.to(input.dtype)
    return found
