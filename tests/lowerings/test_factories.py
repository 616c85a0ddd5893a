"""Ranges of numbers against torch's CPU, to the last bit."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("given", [(50, 1, 50), (0.3, 3.1, 50), (0.0, 9.0, 1000)])
def test_linspace(dtype: torch.dtype, given: tuple[float, float, int]) -> None:
    expected = torch.linspace(*given, dtype=dtype)
    assert torch.equal(torch.linspace(*given, dtype=dtype, device="tpu").cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
@pytest.mark.parametrize("given", [(0.3, 3.1, 50), (0.0, 9.0, 1000), (4.3, 2, 1), (0, 4.9, 2)])
def test_logspace(dtype: torch.dtype, given: tuple[float, float, int]) -> None:
    expected = torch.logspace(*given, dtype=dtype)
    assert torch.equal(torch.logspace(*given, dtype=dtype, device="tpu").cpu(), expected)
