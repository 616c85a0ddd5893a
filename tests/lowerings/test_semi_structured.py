"""Products with 2:4 sparse matrices against dense ones."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.pairs import close

aten = torch.ops.aten


def _sparse(dtype: torch.dtype) -> torch.Tensor:
    """[32, 64] with two of each four kept (float32: one of each two)."""
    torch.manual_seed(0)
    x = torch.randint(-9, 9, (32, 64)).to(dtype)
    group = 2 if dtype == torch.float32 else 4
    x = x.reshape(32, -1, group)
    keep = x.float().abs().topk(group // 2, -1).indices
    return torch.zeros_like(x).scatter(-1, keep, x.gather(-1, keep)).reshape(32, 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8], ids=str)
def test_products(dtype: torch.dtype) -> None:
    sparse, dense = _sparse(dtype), torch.randint(-9, 9, (64, 16)).to(dtype)
    wide = torch.int32 if dtype == torch.int8 else torch.float32
    expected = (sparse.float() @ dense.float()).to(wide)
    on = sparse.to("tpu")
    values, metadata = aten._to_sparse_semi_structured(on)
    assert values.shape == (32, 32)
    right = dense.to("tpu")
    close(aten._sparse_semi_structured_mm(values, metadata, right, out_dtype=wide), expected, 1e-4)
    packed = aten._cslt_compress(on)
    assert packed.shape[1] == 64 * (10 if dtype == torch.int8 else 9) // 16
    turned = aten._cslt_sparse_mm(packed, right, out_dtype=wide, transpose_result=True)
    close(turned, expected.t(), 1e-4)
    assert aten._cslt_sparse_mm_search(packed, right) == 0


def test_linear_and_addmm() -> None:
    sparse, rows, bias = _sparse(torch.float32), torch.randn(2, 3, 64), torch.randn(32)
    values, metadata = aten._to_sparse_semi_structured(sparse.to("tpu"))
    on = (rows.to("tpu"), values, metadata)
    linear = torch.nn.functional.linear(rows, sparse, bias)
    made = aten._sparse_semi_structured_linear(*on, bias=bias.to("tpu"), activation="silu")
    close(made, torch.nn.functional.silu(linear), 1e-3)
    right = rows.reshape(-1, 64).t()
    added = aten._sparse_semi_structured_addmm(
        bias.to("tpu"), values, metadata, right.to("tpu"), alpha=2, beta=0.5
    )
    close(added, 2 * sparse @ right + 0.5 * bias[:, None], 1e-3)
    scaled = aten._cslt_sparse_mm(
        aten._cslt_compress(sparse.to("tpu")),
        right.to("tpu"),
        bias.to("tpu"),
        torch.tensor([3.0], device="tpu"),
    )
    close(scaled, 3 * sparse @ right + bias[:, None], 1e-3)
