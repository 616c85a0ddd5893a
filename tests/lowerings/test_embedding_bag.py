"""Bags of embeddings against torch's CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.opinfo import check


def test_opinfo() -> None:
    assert check("nn.functional.embedding_bag", max_samples=2)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_empty_bags_and_padding(mode: str) -> None:
    weight, indices = torch.randn(5, 3), torch.tensor([1, 2, 4, 2, 0])
    offsets = torch.tensor([0, 2, 2, 3])  # the second bag is empty
    results = []
    for device in ("cpu", "tpu"):
        leaf = weight.detach().to(device).requires_grad_()
        y = F.embedding_bag(indices.to(device), leaf, offsets.to(device), mode=mode, padding_idx=4)
        y.square().sum().backward()
        results.append((y.detach(), leaf.grad))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_backward_of_what_the_cpu_saved(mode: int) -> None:
    aten = torch.ops.aten
    weight, indices = torch.linspace(-1, 1, 15).reshape(5, 3), torch.tensor([1, 2, 4, 2, 0])
    offsets = torch.tensor([0, 2, 2, 3])
    made = aten._embedding_bag(weight, indices, offsets, False, mode)
    ends = (made[0].cos(), indices, offsets, *made[1:], 5, False, mode, False, None)
    expected = aten._embedding_bag_backward(*ends)
    moved = [v.to("tpu") if isinstance(v, torch.Tensor) else v for v in ends]
    torch.testing.assert_close(aten._embedding_bag_backward(*moved).cpu(), expected)
    if mode == 0:
        ends = (made[0].cos(), weight, indices, offsets, made[1], mode)
        expected = aten._embedding_bag_per_sample_weights_backward(*ends)
        moved = [v.to("tpu") if isinstance(v, torch.Tensor) else v for v in ends]
        found = aten._embedding_bag_per_sample_weights_backward(*moved)
        torch.testing.assert_close(found.cpu(), expected)


def test_max_norm() -> None:
    weight, indices = torch.randn(4, 3) * 5, torch.tensor([0, 2])
    expected = F.embedding(indices, weight.clone(), max_norm=1.0)
    actual = F.embedding(indices.to("tpu"), weight.to("tpu"), max_norm=1.0)
    torch.testing.assert_close(actual.cpu(), expected)
