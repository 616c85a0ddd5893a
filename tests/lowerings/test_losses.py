"""Losses and their gradients against torch's CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.opinfo import check

OPS = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "soft_margin_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "margin_ranking_loss",
    "triplet_margin_loss",
    "cosine_embedding_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "poisson_nll_loss",
)


@pytest.mark.parametrize("name", OPS)
def test_opinfo(name: str) -> None:
    assert check(f"nn.functional.{name}", max_samples=2)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(reduction: str, smoothing: float) -> None:
    scores = torch.randn(4, 5, 3)
    target = torch.tensor([[0, 1, 2], [4, -100, 3], [1, 1, -100], [0, 2, 4]])
    weight = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.0])
    results = []
    for device in ("cpu", "tpu"):
        leaf = scores.detach().to(device).requires_grad_()
        loss = F.cross_entropy(
            leaf,
            target.to(device),
            weight.to(device),
            reduction=reduction,
            label_smoothing=smoothing,
        )
        loss.sum().backward()
        results.append((loss.detach(), leaf.grad))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_all_targets_ignored() -> None:
    scores, target = torch.randn(2, 3), torch.full((2,), -100)
    assert F.cross_entropy(scores.to("tpu"), target.to("tpu")).isnan().item()
    assert F.cross_entropy(scores.to("tpu"), target.to("tpu"), reduction="sum").item() == 0


def test_class_probabilities() -> None:
    scores, chances = torch.randn(3, 4), torch.softmax(torch.randn(3, 4), 1)
    expected = F.cross_entropy(scores, chances)
    torch.testing.assert_close(F.cross_entropy(scores.to("tpu"), chances.to("tpu")).cpu(), expected)


def test_halves_round_at_each_step_of_a_loss_with_logits() -> None:
    x, target, weight, positive = (torch.randn(4, 50) * 2).to(torch.bfloat16).unbind()

    def loss(device: str) -> torch.Tensor:
        a, b, c, d = (t.to(device) for t in (x, target, weight, positive))
        return F.binary_cross_entropy_with_logits(a, b, c, reduction="none", pos_weight=d).cpu()

    assert torch.equal(loss("tpu"), loss("cpu"))


@pytest.mark.parametrize("shape", [(), (1,), (4,)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margins_of_one_sample_have_no_dims(shape: tuple[int, ...], reduction: str) -> None:
    x, target = torch.randn(shape), torch.zeros(shape, dtype=torch.int64)
    expected = F.multilabel_margin_loss(x, target, reduction=reduction)
    found = F.multilabel_margin_loss(x.to("tpu"), target.to("tpu"), reduction=reduction)
    torch.testing.assert_close(found.cpu(), expected)
