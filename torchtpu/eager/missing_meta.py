"""Meta functions of ops for which torch has none, or one that rejects what CPU accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL")
CORRECTED: dict[Any, Callable[..., Any]] = {}  # overload -> what run_meta calls in its place


def _meta(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            _library.impl(name, fn, "Meta")
        return fn

    return enter


def _corrects(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        CORRECTED[op] = fn
        return fn

    return enter


@_corrects(torch.ops.aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Hidden and cell state and a workspace of four gates; torch's own wants biases."""
    return torch.empty_like(cx), torch.empty_like(cx), torch.empty_like(input_gates)


@_meta("_thnn_fused_gru_cell")
def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new hidden state and a workspace of five gates."""
    return torch.empty_like(hx), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


@_meta("_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the gates, the hidden state and the biases."""
    gates = grad_hy.new_empty((grad_hy.shape[0], 3 * grad_hy.shape[1]))
    bias = gates.new_empty(gates.shape[1]) if has_bias else None
    return gates, torch.empty_like(gates), torch.empty_like(grad_hy), bias, bias


@_meta("fractional_max_pool3d_backward")
def fractional_max_pool3d_backward(
    grad_output: torch.Tensor, self: torch.Tensor, *_: Any
) -> torch.Tensor:
    """Like the input of the forward."""
    return torch.empty_like(self)


@_meta("multi_margin_loss_backward")
@_meta("multilabel_margin_loss_backward")
def margin_loss_backward(
    grad_output: torch.Tensor, self: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    """Like the input of the forward."""
    return torch.empty_like(self)
