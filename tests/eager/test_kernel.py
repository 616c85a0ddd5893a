"""The general kernel: lazily conjugated arguments, and calls from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "z @ z.mH": lambda z: z @ z.mH,
    "z.mH @ z": lambda z: z.mH @ z,
    "z.conj() @ z.mT": lambda z: z.conj() @ z.mT,
    "dot": lambda z: torch.dot(z[0].conj(), z[1]),
    "linear": lambda z: F.linear(z, z.conj()),
    "einsum": lambda z: torch.einsum("ij,kj->ik", z, z.conj()),
    "bmm": lambda z: torch.bmm(z[None], z.mH[None]),
    "imag": lambda z: z.conj().imag @ z.real.T,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_lazy_conjugation_takes_part(name: str) -> None:
    torch.manual_seed(0)
    z = torch.randn(4, 5, dtype=torch.complex64)
    product = PRODUCTS[name]
    for _ in range(2):
        torch.testing.assert_close(product(z.to("tpu")).cpu(), product(z))


def test_the_gradient_of_a_complex_product() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex64)
    gradients = []
    for device in ("tpu", "cpu"):
        leaves = [t.to(device).requires_grad_() for t in (a, b)]
        product = leaves[0] @ leaves[1]
        found = torch.autograd.grad(product.abs().sum(), leaves)
        gradients.append([g.cpu() for g in found])
    torch.testing.assert_close(*gradients)


def test_threads_write_to_one_tensor() -> None:
    total = torch.zeros(8, device="tpu")
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for _ in range(30):
                total[index].add_(1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert total.tolist() == [30.0] * 8


def test_a_gradient_that_is_not_asked_for_is_no_error() -> None:
    image, grid = torch.randn(2, 3, 4, 4), torch.rand(2, 3, 3, 2) * 2 - 1
    found = []
    for device in ("tpu", "cpu"):
        leaf = image.to(device).requires_grad_()
        F.grid_sample(leaf, grid.to(device), align_corners=False).sum().backward()
        assert leaf.grad is not None
        found.append(leaf.grad.cpu())
    torch.testing.assert_close(*found)
