"""Eigenvalues and singular values: what defines them, and the signs that torch's CPU gives."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check


@pytest.mark.parametrize("name", ["linalg.svdvals", "linalg.eigvalsh", "linalg.eigvals"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_opinfo(name: str, dtype: torch.dtype) -> None:
    assert check(name, dtype, max_samples=2)


@pytest.mark.parametrize("shape", [(3, 5), (4, 20), (5, 8), (4, 3), (5, 3), (5, 5), (2, 3, 6)])
def test_singular_vectors_have_torchs_signs(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    a = torch.randn(shape, dtype=torch.float64)
    expected = torch.linalg.svd(a, full_matrices=False)
    found = torch.linalg.svd(a.to("tpu"), full_matrices=False)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got.cpu(), wanted)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_full_matrices_are_orthogonal(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    a = torch.randn(shape, dtype=torch.float64)
    u, s, vh = (t.cpu() for t in torch.linalg.svd(a.to("tpu")))
    torch.testing.assert_close(u @ u.mT, torch.eye(len(u), dtype=a.dtype))
    torch.testing.assert_close(vh @ vh.mT, torch.eye(len(vh), dtype=a.dtype))
    torch.testing.assert_close(u[:, :3] * s @ vh[:3], a)


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh_reads_one_triangle(uplo: str) -> None:
    torch.manual_seed(0)
    a = torch.randn(30, 30, dtype=torch.complex128)
    a.diagonal().imag.zero_()
    expected = torch.linalg.eigh(a, UPLO=uplo)
    found = torch.linalg.eigh(a.to("tpu"), UPLO=uplo)
    torch.testing.assert_close(found.eigenvalues.cpu(), expected.eigenvalues)
    torch.testing.assert_close(found.eigenvectors.cpu(), expected.eigenvectors)
