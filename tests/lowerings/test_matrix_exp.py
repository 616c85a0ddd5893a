"""The matrix exponential against torch's CPU and against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowerings.opinfo import check


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_opinfo(dtype: torch.dtype) -> None:
    assert check("matrix_exp", dtype, max_samples=3)


def test_each_matrix_of_a_batch_is_scaled_by_its_own_norm() -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([0.0, 1e-9, 1e-3, 1.0, 30.0], dtype=torch.float64)
    a = torch.randn(5, 4, 4, dtype=torch.float64) * sizes[:, None, None]
    a = a - a.mT  # its exponential is orthogonal, and as large as 1
    found = torch.linalg.matrix_exp(a.to("tpu")).cpu()
    torch.testing.assert_close(found, torch.linalg.matrix_exp(a))
    torch.testing.assert_close(found @ found.mT, torch.eye(4, dtype=a.dtype).expand(5, 4, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_two_byte_floats_are_rounded_once(dtype: torch.dtype) -> None:
    a = torch.linspace(-1, 1, 16).reshape(4, 4).to(dtype)
    found = torch.ops.aten.linalg_matrix_exp(a.to("tpu")).cpu()
    torch.testing.assert_close(found, torch.linalg.matrix_exp(a.float()).to(dtype))


def test_nan_does_not_spread_to_the_rest_of_a_batch() -> None:
    a = torch.zeros(2, 2, 2, device="tpu")
    a[0, 0, 0] = math.nan
    found = torch.linalg.matrix_exp(a).cpu()
    assert torch.equal(found[1], torch.eye(2))
    assert bool(found[0].isnan().any())


def test_linear_combinations() -> None:
    matrices, weights = torch.arange(12.0).reshape(3, 2, 2), torch.arange(6.0).reshape(2, 3)
    op = torch.ops.aten._compute_linear_combination
    expected = op(matrices, weights)
    assert torch.equal(op(matrices.to("tpu"), weights.to("tpu")).cpu(), expected)
    out = torch.empty(2, 2, 2, device="tpu")
    op.out(matrices.to("tpu"), weights.to("tpu"), out=out)
    assert torch.equal(out.cpu(), expected)
