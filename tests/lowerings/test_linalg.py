"""Decompositions, solves and determinants against torch's CPU or their definition."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check

OPS = (
    "linalg.cholesky",
    "linalg.inv",
    "linalg.solve",
    "linalg.solve_triangular",
    "linalg.slogdet",
    "linalg.svdvals",
    "linalg.eigvalsh",
    "cholesky_solve",
    "linalg.lu_solve",
)


@pytest.mark.parametrize("name", OPS)
def test_opinfo(name: str) -> None:
    assert check(name, torch.float64, max_samples=2)


def test_factors_multiply_back() -> None:
    torch.manual_seed(0)
    a = torch.randn(2, 4, 3, dtype=torch.float64)
    x = a.to("tpu")
    q, r = torch.linalg.qr(x)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    square = x @ x.mT
    values, vectors = torch.linalg.eigh(square)
    torch.testing.assert_close((q @ r).cpu(), a)
    torch.testing.assert_close(((u * s[:, None]) @ vh).cpu(), a)
    torch.testing.assert_close((vectors * values[:, None] @ vectors.mT).cpu(), square.cpu())


def test_a_matrix_without_a_factor_is_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="not positive-definite"):
        torch.linalg.cholesky(-torch.eye(3, device="tpu"))
