"""LDL factors and solves against torch's CPU: equal pivots, blocks of both sizes, singular ones."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check


@pytest.mark.parametrize("name", ["linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.ldl_solve"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_opinfo(name: str, dtype: torch.dtype) -> None:
    assert check(name, dtype, max_samples=4)


def _matrix(size: int, hermitian: bool) -> torch.Tensor:
    """Two matrices whose small diagonals call for 2 x 2 blocks, with a zero row in the first."""
    torch.manual_seed(size)
    a = torch.randn(2, size, size, dtype=torch.complex128 if hermitian else torch.float64)
    a = a + (a.mH if hermitian else a.mT)
    a.diagonal(dim1=-2, dim2=-1).mul_(0.05)
    return a


@pytest.mark.parametrize("hermitian", [False, True])
def test_factor_and_solve(hermitian: bool) -> None:
    a = _matrix(8, hermitian)
    expected = torch.linalg.ldl_factor(a, hermitian=hermitian)
    assert bool((expected.pivots < 0).any()), "no 2 x 2 block: the matrix does not test them"
    factors = torch.linalg.ldl_factor(a.to("tpu"), hermitian=hermitian)
    torch.testing.assert_close(factors.LD.cpu(), expected.LD)
    assert torch.equal(factors.pivots.cpu(), expected.pivots)
    b = torch.randn(2, 8, 3, dtype=a.dtype)
    x = torch.linalg.ldl_solve(factors.LD, factors.pivots, b.to("tpu"), hermitian=hermitian)
    torch.testing.assert_close(a @ x.cpu(), b)


def test_info_names_the_first_zero_of_d() -> None:
    a = torch.zeros(2, 3, 3)
    a[1] = torch.diag(torch.tensor([2.0, 3.0, 0.0]))
    expected = torch.linalg.ldl_factor_ex(a)
    factors = torch.linalg.ldl_factor_ex(a.to("tpu"))
    for got, wanted in zip(factors, expected, strict=True):
        assert torch.equal(got.cpu(), wanted)


def test_only_the_lower_triangle_is_read() -> None:
    a = torch.tensor([[4.0, float("nan")], [2.0, 3.0]])
    expected = torch.linalg.ldl_factor_ex(a)[0]
    torch.testing.assert_close(torch.linalg.ldl_factor_ex(a.to("tpu"))[0].cpu(), expected)
