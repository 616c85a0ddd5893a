"""Adaptive and fractional pooling and unpooling against torch's CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.opinfo import check


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["adaptive_max_pool", "adaptive_avg_pool", "max_unpool"])
def test_opinfo(kind: str, rank: int) -> None:
    assert check(f"nn.functional.{kind}{rank}d", max_samples=2)


@pytest.mark.parametrize("size", [(7, 5), (3, 4), (1, 1), (9, 10)])
def test_windows_that_do_not_divide_the_input(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 7, 5)
    expected = F.adaptive_avg_pool2d(x, size)
    torch.testing.assert_close(F.adaptive_avg_pool2d(x.to("tpu"), size).cpu(), expected)
    best = F.adaptive_max_pool2d(x.to("tpu"), size, return_indices=True)
    for actual, wanted in zip(
        best, F.adaptive_max_pool2d(x, size, return_indices=True), strict=True
    ):
        assert actual.cpu().equal(wanted)


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_pooling_with_given_samples(rank: int) -> None:
    x = torch.randn(2, 3, *(8,) * rank)
    samples = torch.rand(2, 3, rank)
    pool = F.fractional_max_pool2d if rank == 2 else F.fractional_max_pool3d
    results = []
    for device in ("cpu", "tpu"):
        leaf = x.detach().to(device).requires_grad_()
        y, where = pool(
            leaf, 2, output_size=5, return_indices=True, _random_samples=samples.to(device)
        )
        y.sum().backward()
        results.append((y.detach(), where, leaf.grad))
    for expected, actual in zip(*results, strict=True):
        assert actual.cpu().equal(expected)


def test_fractional_pooling_of_no_elements() -> None:
    x = torch.empty(0, 1, 4, 5, 4, device="tpu")
    made = F.fractional_max_pool3d(x, (2, 2, 1), output_size=2)
    assert made.shape == (0, 1, 2, 2, 2)
