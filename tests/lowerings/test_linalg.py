"""Factors, solves and determinants against torch's CPU or their definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lowerings.opinfo import check

OPS = (
    "linalg.cholesky",
    "linalg.inv",
    "linalg.solve",
    "linalg.solve_triangular",
    "linalg.cross",
    "cholesky_solve",
    "linalg.lu_solve",
)
SINGULAR = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 0.0, 1.0]])
INDEFINITE = torch.diag(torch.tensor([1.0, 2.0, -3.0]))


@pytest.mark.parametrize("name", OPS)
def test_opinfo(name: str) -> None:
    assert check(name, torch.float64, max_samples=2)


@pytest.mark.parametrize("name", ["linalg.det", "linalg.slogdet", "logdet"])
def test_determinants_and_their_gradients(name: str) -> None:
    assert check(name, torch.float64, max_samples=6)


def test_the_gradient_of_a_determinant_in_either_layout() -> None:
    torch.manual_seed(0)
    a = torch.randn(4, 4, dtype=torch.float64)
    for layout in (a, a.mT):
        x = layout.to("tpu").requires_grad_()
        torch.linalg.det(x).backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad.cpu(), torch.linalg.det(a) * torch.linalg.inv(layout).mT)


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


def test_without_pivots() -> None:
    torch.manual_seed(0)
    for shape in ((2, 5, 3), (3, 5)):
        a = torch.randn(shape, dtype=torch.float64)
        p, lower, upper = torch.linalg.lu(a.to("tpu"), pivot=False)
        assert p.numel() == 0
        torch.testing.assert_close((lower @ upper).cpu(), a)
        _, pivots = torch.linalg.lu_factor(a.to("tpu"), pivot=False)
        assert pivots.cpu().flatten()[:3].tolist() == [1, 2, 3]


CALLS: dict[str, Callable[[str], Any]] = {
    "cholesky": lambda device: torch.linalg.cholesky(INDEFINITE.to(device)),
    "upper": lambda device: torch.linalg.cholesky(INDEFINITE.to(device), upper=True),
    "batch": lambda device: torch.linalg.cholesky(
        torch.stack([torch.eye(3), INDEFINITE]).to(device)
    ),
    "cholesky_ex": lambda device: torch.linalg.cholesky_ex(
        INDEFINITE.to(device), check_errors=True
    ),
    "inv": lambda device: torch.linalg.inv(SINGULAR.to(device)),
    "inv_ex": lambda device: torch.linalg.inv_ex(SINGULAR.to(device), check_errors=True),
    "solve": lambda device: torch.linalg.solve(SINGULAR.to(device), torch.ones(3, device=device)),
    "solve_ex": lambda device: torch.linalg.solve_ex(
        SINGULAR.to(device), torch.ones(3, device=device), check_errors=True
    ),
    "lu_factor": lambda device: torch.linalg.lu_factor(SINGULAR.to(device)),
    "lu_factor_ex": lambda device: torch.linalg.lu_factor_ex(
        SINGULAR.to(device), check_errors=True
    ),
    "ldl_factor": lambda device: torch.linalg.ldl_factor(torch.zeros(3, 3, device=device)),
    "eigvals": lambda device: torch.linalg.eigvals(
        SINGULAR.to(device), out=torch.empty(3, device=device)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_matrices_that_do_not_do_raise_in_torchs_words(name: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        CALLS[name]("cpu")
    with pytest.raises(RuntimeError) as found:
        CALLS[name]("tpu")
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_info_names_the_first_minor_that_is_not_positive() -> None:
    batch = torch.stack([torch.eye(3), INDEFINITE, -torch.eye(3)])
    assert torch.linalg.cholesky_ex(batch.to("tpu")).info.tolist() == [0, 3, 1]


def test_eigvals_into_an_output() -> None:
    out = torch.empty(0, dtype=torch.complex64, device="tpu")
    assert torch.linalg.eigvals(SINGULAR.to("tpu"), out=out) is out
    found = sorted(out.cpu().real.tolist())
    assert found == pytest.approx([0.0, 1.0, 5.0], abs=1e-5)
