"""Reductions of segments against torch's CPU, with empty segments, zeros, NaN and equal extrema."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check

REDUCTIONS = ["sum", "mean", "prod", "max", "min"]


@pytest.mark.parametrize("name", ["_segment_reduce.lengths", "_segment_reduce.offsets"])
def test_opinfo(name: str) -> None:
    assert check(name, max_samples=2)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("initial", [None, 2.0])
def test_values_and_gradients(reduce: str, initial: float | None) -> None:
    data = torch.tensor([0.0, 0.0, 2.0, 3.0, 0.0, 5.0, float("nan"), -1.0, 4.0, 4.0])
    lengths = torch.tensor([3, 2, 0, 1, 2, 2])
    results = []
    for device in ("cpu", "tpu"):
        x = data.to(device).requires_grad_()
        y = torch.segment_reduce(x, reduce, lengths=lengths.to(device), initial=initial)
        (grad,) = torch.autograd.grad(y, x, torch.tensor([1.0, -2, 3, 4, 5, 6]).to(device))
        results.append((y.detach().cpu(), grad.cpu()))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True)


def test_offsets_may_leave_elements_out() -> None:
    data, offsets = torch.randn(2, 6, 3), torch.tensor([[1, 3, 5], [0, 6, 6]])
    expected = torch.segment_reduce(data, "sum", offsets=offsets, axis=1)
    actual = torch.segment_reduce(data.to("tpu"), "sum", offsets=offsets.to("tpu"), axis=1)
    torch.testing.assert_close(actual.cpu(), expected)


def test_one_program_for_all_lengths() -> None:
    data = torch.randn(6, device="tpu")
    made = [
        torch.segment_reduce(data, "sum", lengths=torch.tensor(n, device="tpu"), unsafe=True).sum()
        for n in ([3, 3], [1, 5], [6, 0])
    ]
    torch.testing.assert_close(torch.stack(made).cpu(), data.cpu().sum().expand(3))
