"""Max and average pooling against torch's CPU: ties, NaN, overlaps, ceil mode, positions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.opinfo import check


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["max_pool", "avg_pool"])
def test_opinfo(kind: str, rank: int) -> None:
    assert check(f"nn.functional.{kind}{rank}d", max_samples=3)


def test_max_pool_backward_opinfo() -> None:
    assert check("max_pool2d_with_indices_backward", max_samples=2)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "ceil_mode"),
    [
        (3, 2, 1, 1, False),
        (2, 2, 0, 2, True),
        (6, 1, 3, 1, False),
        ((3, 2), (1, 3), (1, 0), 1, True),
    ],
)
def test_max_pool_positions_and_gradient(
    kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> None:
    x = torch.randint(0, 4, (2, 3, 9, 8)).float()  # many ties
    results = []
    for device in ("cpu", "tpu"):
        leaf = x.detach().to(device).requires_grad_()
        y, where = F.max_pool2d(
            leaf, kernel, stride, padding, dilation, ceil_mode, return_indices=True
        )
        (y * torch.arange(y.numel(), device=device).reshape(y.shape)).sum().backward()
        results.append((y.detach(), where, leaf.grad))
    for expected, actual in zip(*results, strict=True):
        assert actual.cpu().equal(expected)


def test_nan_wins() -> None:
    x = torch.tensor([[[1.0, torch.nan, 3.0, 2.0]]])
    y, where = F.max_pool1d(x.to("tpu"), 4, return_indices=True)
    assert y.isnan().item()
    assert where.item() == 1


def test_integers() -> None:
    x = torch.randint(-9, 9, (1, 4, 4))
    assert F.max_pool2d(x.to("tpu"), 2).cpu().equal(F.max_pool2d(x, 2))


def test_average_of_padding_and_divisor() -> None:
    x = torch.randn(1, 2, 7, 5)
    for options in (
        {"count_include_pad": False, "ceil_mode": True},
        {"divisor_override": 3},
        {"ceil_mode": True},
    ):
        expected = F.avg_pool2d(x, 3, 2, 1, **options)
        torch.testing.assert_close(F.avg_pool2d(x.to("tpu"), 3, 2, 1, **options).cpu(), expected)
