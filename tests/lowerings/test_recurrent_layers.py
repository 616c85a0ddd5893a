"""LSTM and GRU as one op: gradients by torch.nn's modules on the CPU, and dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.lowerings.pairs import close

aten = torch.ops.aten
MODES = {"lstm": 2, "gru": 3}


def _module(mode: str, **options: Any) -> Any:
    return (nn.LSTM if mode == "lstm" else nn.GRU)(5, 6, 2, **options)


def _on_device(mode: str, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    x, h, *weights = leaves
    cell = weights.pop(0) if mode == "lstm" else None
    options: Any = (6, 0, 2, False, 0.0, True, True, [], None)
    out, hidden, last, *_ = aten._cudnn_rnn(x, weights, 4, None, h, cell, MODES[mode], *options)
    return [out, hidden] + ([last] if mode == "lstm" else [])


def _slopes(results: list[torch.Tensor], leaves: list[torch.Tensor]) -> Any:
    return torch.autograd.grad(results, leaves, [t.detach().cos() for t in results])


@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode: str) -> None:
    torch.manual_seed(0)
    module = _module(mode, bidirectional=True)
    states = [torch.randn(4, 3, 6) for _ in range(2 if mode == "lstm" else 1)]
    leaves = [t.requires_grad_() for t in (torch.randn(4, 3, 5), *states)] + module._flat_weights
    out, last = module(leaves[0], tuple(leaves[1:3]) if mode == "lstm" else leaves[1])
    expected = [out, *(last if mode == "lstm" else [last])]
    on = [t.detach().to("tpu").requires_grad_() for t in leaves]
    actual = _on_device(mode, on)
    close([actual, _slopes(actual, on)], [expected, _slopes(expected, leaves)], 1e-4)


def _gru(dropout: float, seed: int = 0) -> tuple[list[torch.Tensor], Any]:
    torch.manual_seed(0)
    module = _module("gru")
    weights = [w.detach().to("tpu") for w in module._flat_weights]
    x, h = torch.randn(4, 3, 5, device="tpu"), torch.randn(2, 3, 6, device="tpu")
    leaves = [t.requires_grad_() for t in (x, h, *weights)]
    torch.manual_seed(seed)
    made = aten.miopen_rnn(
        x, leaves[2:], 4, h, None, 3, 6, 2, False, dropout, True, False, [], None
    )
    return leaves, made


def test_dropout_between_layers_is_kept_for_backward() -> None:
    leaves, (out, _, _, reserve, _) = _gru(0.5)
    assert reserve.numel() == 16
    assert (out != _gru(0.5, seed=1)[1][0]).any()
    assert (out == _gru(0.5)[1][0]).all()
    grad = torch.autograd.grad(out.sum(), leaves)[0]
    assert grad.isfinite().all()
    assert _gru(0.0)[1][3].numel() == 0
