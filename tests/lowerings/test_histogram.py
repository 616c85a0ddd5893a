"""Histograms against torch's CPU: values on edges, ranges, weights, densities, mistakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lowerings.opinfo import check


@pytest.mark.parametrize("name", ["histogram", "histogramdd"])
def test_opinfo(name: str) -> None:
    assert check(name, max_samples=3)


def _values() -> torch.Tensor:
    """Among others all edges, what lies outside, and what is not a number."""
    edges = torch.linspace(-1, 2.5, 8)
    return torch.cat([edges, edges + 1e-3, torch.tensor([-9.0, 9.0, 2.25])]).view(-1, 1)


@pytest.mark.parametrize("density", [False, True])
def test_edges_belong_to_the_bin_above(density: bool) -> None:
    x = _values()
    weight = torch.arange(1, 1 + x.numel(), dtype=torch.float32).view_as(x)
    arguments: dict[str, Any] = {"range": (-1, 2.5), "density": density}
    for w in (None, weight):
        expected = torch.histogram(x, 7, weight=w, **arguments)
        w = None if w is None else w.to("tpu")
        actual = torch.histogram(x.to("tpu"), 7, weight=w, **arguments)
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.cpu(), e)


def test_range_of_the_data() -> None:
    for x in (torch.tensor([3.0, 3.0]), torch.tensor([]), torch.tensor([1.0, 4.0, 2.5])):
        for a, e in zip(torch.histogram(x.to("tpu"), 3), torch.histogram(x, 3), strict=True):
            torch.testing.assert_close(a.cpu(), e)


def test_several_dims() -> None:
    x = torch.cat([_values(), _values().flip(0)], 1)
    edges = [torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0.0, 0.5, 1.0, 2.5])]
    expected = torch.histogramdd(x, edges, density=True)
    actual = torch.histogramdd(x.to("tpu"), [e.to("tpu") for e in edges], density=True)
    torch.testing.assert_close(actual.hist.cpu(), expected.hist)


def test_out() -> None:
    x, empty = _values().to("tpu"), torch.empty(0, device="tpu")
    hist, edges = torch.histogram(x, 4, out=(empty, torch.empty(0, device="tpu")))
    assert hist is empty
    assert edges.shape == (5,)
    torch.testing.assert_close(hist.cpu(), torch.histogram(x.cpu(), 4).hist)


def test_mistakes_are_said_in_the_words_of_the_cpu() -> None:
    x = torch.ones(3, device="tpu")
    with pytest.raises(RuntimeError, match="bins must be > 0, but got -1"):
        torch.histogram(x, -1)
    with pytest.raises(RuntimeError, match="bins tensor should have one dimension"):
        torch.histogram(x, torch.ones(2, 2, device="tpu"))
    with pytest.raises(RuntimeError, match="size of bins must be equal to the innermost dimension"):
        torch.histogramdd(torch.ones(3, 3, device="tpu"), [2, 2])
