"""Order along a dim: where equal elements, bins' edges and dtypes decide."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_bins_are_chosen_with_the_rounding_of_the_cpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.rand(200, dtype=torch.float64) * 20 - 10).to(dtype)
    grid = torch.arange(-10, 11, dtype=torch.float64).to(dtype) / 3
    for values, low, high in ((x, -10, 10), (x, 0, 0), (x, 0, 7.3), (grid, -3, 3)):
        expected = torch.histc(values, 30, low, high)
        assert torch.equal(torch.histc(values.to("tpu"), 30, low, high).cpu(), expected)


def test_a_stable_sort_keeps_the_order_of_equal_elements() -> None:
    x = torch.tensor([2, 1, 2, 1, 0, 2])
    for descending in (False, True):
        expected = torch.sort(x, stable=True, descending=descending)
        actual = torch.sort(x.to("tpu"), stable=True, descending=descending)
        assert torch.equal(actual.indices.cpu(), expected.indices)
