"""Matrices that are pruned to 2:4 as torch.sparse does it, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch.sparse import SparseSemiStructuredTensorCUTLASS

from tests.lowerings.pairs import close
from torchtpu.errors import TpuError

aten = torch.ops.aten


@pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemi")  # a prototype of torch
def test_a_pruned_matrix_and_its_transpose_multiply() -> None:
    torch.manual_seed(0)
    x, right, rows = torch.randn(64, 64).half(), torch.randn(64, 16).half(), torch.randn(8, 64)
    sparse = SparseSemiStructuredTensorCUTLASS.prune_dense_static_sort(x.to("tpu"))
    bits = sparse.compressed_swizzled_bitmask
    kept = aten._sparse_semi_structured_apply_dense(x.to("tpu"), bits).cpu()
    for along in (0, 1):
        assert (kept != 0).unfold(along, 4, 4).sum(-1).max() == 2
    close(sparse.to_dense(), kept, 0)
    close(sparse @ right.to("tpu"), kept @ right, 2e-2)
    close(sparse.t() @ right.to("tpu"), kept.t() @ right, 2e-2)
    made = torch.nn.functional.linear(rows.half().to("tpu"), sparse)
    close(made, rows.half() @ kept.t(), 2e-2)


def test_a_mask_keeps_places_whatever_stands_there() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 32).bfloat16().to("tpu")
    _, metadata, _, _, bits = aten._sparse_semi_structured_tile(x)
    other = torch.randint(0, 2, (32, 32)).bfloat16()  # zeros where the mask keeps
    packed, _ = aten._sparse_semi_structured_apply(other.to("tpu"), bits)
    eye = torch.eye(32, device="tpu", dtype=torch.bfloat16)
    dense = aten._sparse_semi_structured_mm(packed, metadata, eye)
    masked = aten._sparse_semi_structured_apply_dense(other.to("tpu"), bits)
    close(dense, masked.cpu(), 0)


def test_what_is_refused() -> None:
    x = torch.zeros(32, 32, device="tpu")
    with pytest.raises(TpuError, match=r"_tile\] expected a matrix of float16"):
        aten._sparse_semi_structured_tile(x)
    with pytest.raises(TpuError, match="expected multiples of 32"):
        aten._sparse_semi_structured_tile(x[:8].half())
    with pytest.raises(TpuError, match=r"expected one of .*greedy.*got 'best'"):
        aten._sparse_semi_structured_tile(x.half(), "best")
