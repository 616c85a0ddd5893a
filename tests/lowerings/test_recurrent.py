"""LSTM, GRU and RNN against torch's CPU, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn


def _run(module: nn.Module, x: torch.Tensor, device: str) -> list[torch.Tensor]:
    moved, leaf = module.to(device), x.detach().to(device).requires_grad_()
    moved.zero_grad()
    output, state = moved(leaf)
    states = list(state) if isinstance(state, tuple) else [state]
    sum(t.square().sum() for t in (output, *states)).backward()
    grads = [p.grad for p in moved.parameters() if p.grad is not None]
    return [t.detach().cpu() for t in (output, *states, leaf.grad, *grads) if t is not None]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {"bidirectional": True, "batch_first": True}),
        (nn.LSTM, {"bias": False}),
        (nn.GRU, {"batch_first": True}),
        (nn.RNN, {}),
    ],
)
def test_sequences(kind: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module, x = kind(3, 4, **options), torch.randn(2, 2, 3)
    expected = _run(module, x, "cpu")
    for e, a in zip(expected, _run(module, x, "tpu"), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_cells(kind: Any) -> None:
    torch.manual_seed(0)
    module, x = kind(3, 4), torch.randn(2, 3)
    expected = module(x)
    actual = module.to("tpu")(x.to("tpu"))
    pairs = zip(actual, expected, strict=True) if kind is nn.LSTMCell else [(actual, expected)]
    for a, e in pairs:
        torch.testing.assert_close(a.cpu(), e)
