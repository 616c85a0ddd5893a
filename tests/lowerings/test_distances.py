"""Distances between rows against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check


@pytest.mark.parametrize("name", ["cdist", "nn.functional.pdist"])
def test_opinfo(name: str) -> None:
    assert check(name, max_samples=3)


@pytest.mark.parametrize("batches", [((1,), (3, 1)), ((2, 1), (3,)), ((), (2,)), ((), (0,))])
def test_gradients_of_broadcast_batches(batches: tuple[tuple[int, ...], ...]) -> None:
    inputs = [torch.randn(*batch, 2, 3) for batch in batches]
    results = []
    for device in ("cpu", "tpu"):
        x, y = (t.to(device).requires_grad_() for t in inputs)
        results.append(torch.autograd.grad(torch.cdist(x, y).sum(), (x, y)))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected)
