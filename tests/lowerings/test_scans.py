"""Running results along a dim against torch's CPU."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowerings.opinfo import check

OPS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


@pytest.mark.parametrize("name", OPS)
def test_opinfo(name: str) -> None:
    assert check(name, torch.float32, max_samples=3)


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_logcumsumexp_rounds_once(offset: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(200) + offset
    found = torch.logcumsumexp(x.to("tpu"), 0).cpu()
    torch.testing.assert_close(found, torch.logcumsumexp(x, 0), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "values",
    [
        [-math.inf, -math.inf, 1.0, -1000.0, 1000.0, math.inf, 3.0],
        [1.0, -3e38, 3e38, math.nan, 1.0],
        [-1000.0, -math.inf, -1001.0],
    ],
)
def test_logcumsumexp_of_extremes(values: list[float]) -> None:
    x = torch.tensor(values)
    found = torch.logcumsumexp(x.to("tpu"), 0).cpu()
    torch.testing.assert_close(found, torch.logcumsumexp(x, 0), equal_nan=True)


def test_logcumsumexp_of_complex_numbers_far_apart() -> None:
    x = torch.tensor([-500 + 1j, 2 - 3j, 600 + 0.5j])
    found = torch.logcumsumexp(x.to("tpu"), 0).cpu()
    torch.testing.assert_close(found, torch.logcumsumexp(x, 0))
