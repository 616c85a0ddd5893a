"""Nested and sparse tensors: jagged rows, masks, compressed layouts, and 2:4 sparse products."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.ops.samples.call import Call, call, ints, values

aten = torch.ops.aten


def made() -> list[tuple[str, Call]]:
    """Return overloads' names, several in a string where they share a call, with their calls."""
    return [
        *_jagged(),
        *_nested(),
        *_compressed(),
        *_products(),
        *_compressed_products(),
        *_pruned(),
    ]


def _jagged() -> list[tuple[str, Call]]:
    rows, starts = values(9, 3), ints(0, 3, 3, 8, 9)
    padded = values(4, 5, 3)
    pad, pack = "_jagged_to_padded_dense_forward", "_padded_dense_to_jagged_forward"
    return [
        (pad, call(rows, [starts], [5], reference=_padded)),
        (pad, call(rows, [starts], [4], -1.5, reference=_padded)),
        (pack, call(padded, [starts], reference=_packed)),
        (pack, call(padded, [starts], 9, reference=_packed)),
    ]


def _padded(rows: Any, starts: Any, sizes: Any, padding: float = 0.0) -> torch.Tensor:
    parts = [p[: sizes[0]] for p in rows.tensor_split(starts[0][1:-1])]
    return torch.stack([F.pad(p, (0, 0, 0, sizes[0] - len(p)), value=padding) for p in parts])


def _packed(padded: Any, starts: Any, _: Any = None) -> torch.Tensor:
    return torch.cat([p[:n] for p, n in zip(padded, starts[0].diff(), strict=True)])


def _nested() -> list[tuple[str, Call]]:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    gaps = torch.tensor([[True, False, True], [True, False, False]])
    sizes = torch.tensor([[2, 3], [1, 4]])
    of_view = (sizes, torch.tensor([[3, 1], [4, 1]]), ints(0, 6))
    return [
        ("_nested_tensor_from_mask", call(values(2, 3, 4), mask)),
        ("_nested_tensor_from_mask", call(values(2, 3, 4), gaps, False)),
        ("_nested_tensor_from_mask_left_aligned", call(values(2, 3, 4), mask)),
        ("_nested_tensor_from_mask_left_aligned", call(values(2, 3, 4), gaps)),
        ("_nested_from_padded", call(values(2, 3, 4), sizes)),
        ("_nested_from_padded", call(values(2, 2, 3, 4), torch.tensor([[2, 8], [1, 8]]), True)),
        ("_nested_view_from_buffer", call(values(10), *of_view)),
        ("_nested_compute_contiguous_strides_offsets", call(sizes)),
        ("_nested_compute_contiguous_strides_offsets", call(torch.tensor([[2, 0, 3], [1, 4, 2]]))),
    ]


def _compressed() -> list[tuple[str, Call]]:
    x = values(4, 6)
    x[x.abs() < 1] = 0
    return [
        ("_to_sparse_csc", call(x)),
        ("_to_sparse_csc", call(values(4, 6, 2), 1)),
        ("_to_sparse_bsr _to_sparse_bsc", call(x, [2, 3])),
        ("_to_sparse_bsr _to_sparse_bsc", call(values(4, 6, 2), [2, 3], 1)),
    ]


def _sparse(dtype: torch.dtype) -> torch.Tensor:
    """[32, 64] of whole numbers, two of each four not 0 (float32: one of each two)."""
    x = (torch.arange(32 * 64) * 7 % 19 - 9).to(torch.float32).reshape(32, -1, 4)
    x[x == 0] = 5
    if dtype == torch.float32:
        keep = torch.tensor([[True, False, False, True], [False, True, True, False]])
    else:
        keep = torch.tensor([[True, False, True, False], [False, True, True, False]])
    return (x * keep.repeat(32, 8, 1)).to(dtype).reshape(32, 64)


def _kept(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return _packed_pair(_sparse(dtype))


def _products() -> list[tuple[str, Call]]:
    found = []
    for dtype in (torch.bfloat16, torch.float32, torch.int8):
        found += _products_in(dtype)
    kept = call(_sparse(torch.bfloat16), reference=lambda _: _kept(torch.bfloat16))
    return [*found, ("_to_sparse_semi_structured", kept)]


def _products_in(dtype: torch.dtype) -> list[tuple[str, Call]]:
    sparse, kept = _sparse(dtype), _kept(dtype)
    right = values(64, 16, dtype=torch.int8).to(dtype)
    wide = torch.int32 if dtype == torch.int8 else torch.float32

    def product(_: Any, __: Any, right: Any, out_dtype: Any) -> Any:
        return (sparse.float() @ right.float()).to(out_dtype)

    found = [("_sparse_semi_structured_mm", call(*kept, right, out_dtype=wide, reference=product))]
    if dtype == torch.int8:
        return found
    bias = values(32).to(dtype)

    def added(bias: Any, _: Any, __: Any, right: Any, alpha: int, beta: float) -> Any:
        made = alpha * sparse.float() @ right.float() + beta * bias.float()[:, None]
        return made.to(dtype)

    def linear(rows: Any, _: Any, __: Any, bias: Any, activation: str) -> Any:
        made = F.linear(rows.float(), sparse.float(), bias.float())
        return {"relu": F.relu, "silu": F.silu}[activation](made).to(dtype)

    rows = values(2, 3, 64).to(dtype)
    options: dict[str, Any] = {"alpha": 2, "beta": 0.5, "reference": added}
    found.append(("_sparse_semi_structured_addmm", call(bias, *kept, right, **options)))
    for activation in ("relu", "silu"):
        named: dict[str, Any] = {"bias": bias, "activation": activation, "reference": linear}
        found.append(("_sparse_semi_structured_linear", call(rows, *kept, **named)))
    return found


def _compressed_products() -> list[tuple[str, Call]]:
    """The order of cuSPARSELt is its own: here the values, then the metadata as elements."""
    found = []
    for dtype in (torch.float16, torch.int8):
        sparse, (kept, places) = _sparse(dtype), _kept(dtype)
        packed = torch.cat([kept, places.view(dtype)], 1)
        right = values(64, 16, dtype=torch.int8).to(dtype)
        bias, scale = values(32).to(dtype), torch.tensor([3.0])
        wide = torch.int32 if dtype == torch.int8 else torch.float32

        def compress(_: Any, packed: Any = packed) -> Any:
            return packed

        def product(
            _: Any, right: Any, *more: Any, sparse: Any = sparse, out_dtype: Any, **named: Any
        ) -> Any:
            made = sparse.float() @ right.float()
            if more:
                made = made * more[1] + more[0][:, None]
            return (made.t() if named else made).to(out_dtype)

        options: dict[str, Any] = {"out_dtype": wide, "reference": product}
        turned = call(packed, right, **options, transpose_result=True)
        search = call(packed, right, reference=lambda *_: 0)
        found += [
            ("_cslt_compress", call(sparse, reference=compress)),
            ("_cslt_sparse_mm", turned),
            ("_cslt_sparse_mm", call(packed, right, bias, scale, **options)),
            ("_cslt_sparse_mm_search", search),
        ]
    return found


def _pruned() -> list[tuple[str, Call]]:
    """A matrix pruned to 2:4 in both directions, and another one where the first one was kept."""
    x, other = ((torch.arange(32 * 64) * n % 509 - 200).half().reshape(32, 64) for n in (73, 91))
    for matrix in (x, other):
        matrix[matrix == 0] = 5
    tile, apply = "_sparse_semi_structured_tile", "_sparse_semi_structured_apply"
    masks = _masks(_greedy(x))

    def packed(x: torch.Tensor, algorithm: str = "") -> Any:
        kept = _greedy(x.abs() if "abs" in algorithm else x)
        both = (_packed_pair(p) for p in (x * kept, (x * kept).t().contiguous()))
        return *(t for pair in both for t in pair), _masks(kept)

    def applied(other: torch.Tensor, _: Any) -> Any:
        values, _, turned, *_ = (
            t
            for p in (other * _greedy(x), (other * _greedy(x)).t().contiguous())
            for t in _packed_pair(p)
        )
        return values, turned

    def masked(other: torch.Tensor, _: Any) -> Any:
        return other * _greedy(x)

    return [
        (tile, call(x, reference=packed)),
        (tile, call(x, "largest_abs_values_greedy", reference=packed)),
        (apply, call(other, masks, reference=applied)),
        (f"{apply}_dense", call(other, masks, reference=masked)),
    ]


def _packed_pair(pruned: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from torch.sparse import _semi_structured_conversions as conversions

    packed, places = conversions.sparse_semi_structured_from_dense_cutlass(pruned)
    return packed, places


def _greedy(x: torch.Tensor) -> torch.Tensor:
    """What torch keeps, by its own loop over the tiles."""
    from torch.sparse import _semi_structured_conversions as conversions

    pruned: Any = conversions._sparse_semi_structured_tile(x.clone())
    return torch.as_tensor(pruned != 0)


def _masks(kept: torch.Tensor) -> torch.Tensor:
    """Bits of the 4 x 4 tiles of each 8 x 8, the lowest first."""
    tiles = kept.int().unfold(0, 8, 8).unfold(1, 8, 8).unfold(2, 4, 4).unfold(3, 4, 4)
    bits = tiles.reshape(*tiles.shape[:2], 4, 2, 8)
    weighted: torch.Tensor = bits * 2 ** torch.arange(8)
    return weighted.sum(-1).to(torch.uint8)
