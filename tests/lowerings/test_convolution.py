"""Convolutions and their gradients against torch's CPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.opinfo import check


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["conv", "conv_transpose"])
def test_opinfo(kind: str, rank: int) -> None:
    assert check(f"nn.functional.{kind}{rank}d", max_samples=2)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64, torch.int64], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    backward = dtype != torch.int64
    assert check("nn.functional.conv2d", dtype, max_samples=1, backward=backward)
    assert check("nn.functional.conv_transpose1d", dtype, max_samples=1, backward=backward)


@pytest.mark.parametrize(("transposed", "groups"), list(product([False, True], [1, 2])))
def test_all_options_together(transposed: bool, groups: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 7, 6)
    shape = (4, 6 // groups, 3, 2) if transposed else (6, 4 // groups, 3, 2)
    weight, bias = torch.randn(shape), torch.randn(6)
    options: dict[str, Any] = {
        "stride": (2, 3),
        "padding": (1, 2),
        "dilation": (2, 1),
        "groups": groups,
    }
    results = []
    for device in ("cpu", "tpu"):
        leaves = [t.detach().to(device).requires_grad_() for t in (x, weight, bias)]
        a, b, c = leaves
        if transposed:
            y = F.conv_transpose2d(a, b, c, output_padding=(1, 2), **options)
        else:
            y = F.conv2d(a, b, c, **options)
        y.square().sum().backward()
        results.append([y.detach(), *(t.grad for t in leaves)])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    x = torch.randn(1, 2, 4, 4, device="tpu")
    weight = torch.randn(3, 2, 3, 3, device="tpu", requires_grad=True)
    F.conv2d(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


def test_half_is_as_good_as_float32_rounded_once() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, 64, 5, 5).bfloat16(), torch.randn(8, 64, 3, 3).bfloat16()
    exact = F.conv2d(x.float(), weight.float())
    actual = F.conv2d(x.to("tpu"), weight.to("tpu")).cpu()
    torch.testing.assert_close(actual, exact.bfloat16(), rtol=1e-2, atol=1e-2)


def test_channels_last_and_same_padding() -> None:
    x = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    weight = torch.randn(4, 3, 3, 3)
    expected = F.conv2d(x, weight, padding="same")
    torch.testing.assert_close(
        F.conv2d(x.to("tpu"), weight.to("tpu"), padding="same").cpu(), expected
    )
