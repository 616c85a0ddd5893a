"""F.ctc_loss against torch's CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.opinfo import check


def test_opinfo() -> None:
    assert check("nn.functional.ctc_loss", max_samples=1)


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_lengths_repeats_and_impossible_rows(zero_infinity: bool, joined: bool) -> None:
    torch.manual_seed(0)
    scores = torch.randn(6, 3, 5)
    rows = torch.tensor([[1, 1, 2], [3, 0, 0], [4, 4, 4]])  # the last does not fit its five steps
    lengths, target_lengths = torch.tensor([6, 4, 4]), torch.tensor([3, 1, 3])
    targets = torch.tensor([1, 1, 2, 3, 4, 4, 4]) if joined else rows
    results = []
    for device in ("cpu", "tpu"):
        leaf = scores.detach().to(device).requires_grad_()
        loss = F.ctc_loss(
            leaf.log_softmax(2),
            targets.to(device),
            lengths,
            target_lengths,
            reduction="none",
            zero_infinity=zero_infinity,
        )
        loss[:2].sum().backward()
        results.append((loss.detach(), leaf.grad))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
