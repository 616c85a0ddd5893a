"""RNN, LSTM and GRU under the names of cuDNN's and MIOpen's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchtpu.eager.view_ops import kernel

_Optional = torch.Tensor | None
_Tensors = Sequence[torch.Tensor]
_library = torch.library.Library("torchtpu", "FRAGMENT")
_INPUTS = (
    "Tensor input, Tensor[] weight, Tensor hx, Tensor? cx, int mode, int layers, "
    "bool batch_first, bool bidirectional, int[] batch_sizes, float dropout, Tensor? halves"
)


def _meta(
    x: torch.Tensor, weight: _Tensors, hx: torch.Tensor, cx: _Optional, *rest: Any
) -> tuple[torch.Tensor, ...]:
    bidirectional = rest[3]
    out = x.new_empty((*x.shape[:-1], hx.shape[-1] * (1 + bidirectional)))
    return out, torch.empty_like(hx), hx.new_empty(0) if cx is None else torch.empty_like(cx)


def _meta_backward(*inputs: Any) -> list[torch.Tensor]:
    x, weight, hx, cx = inputs[3:7]
    return [torch.empty_like(t) for t in (x, hx, cx, *weight) if t is not None]


_library.define(f"recurrent_layers({_INPUTS}) -> (Tensor, Tensor, Tensor)")
_library.impl("recurrent_layers", _meta, "CompositeExplicitAutograd")
_library.define(
    "recurrent_layers_backward(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, "
    f"{_INPUTS}) -> Tensor[]"
)
_library.impl("recurrent_layers_backward", _meta_backward, "CompositeExplicitAutograd")


def _derived(name: str) -> Any:
    from torchtpu.eager import dispatch

    return dispatch.derived[f"torchtpu::{name}"]


def _run(inputs: tuple[Any, ...], drops: bool) -> tuple[torch.Tensor, ...]:
    """Output, last states, and the random key of dropout as bytes."""
    x: torch.Tensor = inputs[0]
    halves = torch.empty(2, dtype=torch.int64, device=x.device).random_() if drops else None
    made = _derived("recurrent_layers")(*inputs, halves)
    reserve = x.new_empty(0, dtype=torch.uint8) if halves is None else halves.view(torch.uint8)
    return *made, reserve


def _back(grads: tuple[_Optional, ...], inputs: tuple[Any, ...], reserve: torch.Tensor) -> Any:
    halves = reserve.view(torch.int64) if reserve.numel() else None
    of_input, of_hidden, *rest = _derived("recurrent_layers_backward")(*grads, *inputs, halves)
    of_cell = rest.pop(0) if inputs[3] is not None else None
    return of_input, of_hidden, of_cell, rest


@kernel("aten::_cudnn_rnn")
def cudnn_rnn(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    weight: _Tensors,
    weight_stride0: int,
    weight_buf: _Optional,
    hx: torch.Tensor,
    cx: _Optional,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: _Optional,
) -> Any:
    """Output, last states, a reserve (dropout's key) and the weights' buffer."""
    options = (mode, num_layers, batch_first, bidirectional, list(batch_sizes), dropout)
    made = _run((input, weight, hx, cx, *options), train and dropout > 0)
    return *made, input.new_empty(0) if weight_buf is None else weight_buf


@kernel("aten::_cudnn_rnn_backward")
def cudnn_rnn_backward(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    weight: _Tensors,
    weight_stride0: int,
    weight_buf: torch.Tensor,
    hx: torch.Tensor,
    cx: _Optional,
    output: torch.Tensor,
    grad_output: _Optional,
    grad_hy: _Optional,
    grad_cy: _Optional,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: _Optional,
    reserve: torch.Tensor,
    output_mask: Sequence[bool],
) -> Any:
    """Gradients of the input, the first states and the weights."""
    options = (mode, num_layers, batch_first, bidirectional, list(batch_sizes), dropout)
    return _back((grad_output, grad_hy, grad_cy), (input, weight, hx, cx, *options), reserve)


@kernel("aten::miopen_rnn")
def miopen_rnn(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    weight: _Tensors,
    weight_stride0: int,
    hx: torch.Tensor,
    cx: _Optional,
    mode: int,
    hidden_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: _Optional,
) -> Any:
    """Output, last states, a reserve (dropout's key) and an empty buffer of weights."""
    options = (mode, num_layers, batch_first, bidirectional, list(batch_sizes), dropout)
    made = _run((input, weight, hx, cx, *options), train and dropout > 0)
    return *made, input.new_empty(0)


@kernel("aten::miopen_rnn_backward")
def miopen_rnn_backward(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    weight: _Tensors,
    weight_stride0: int,
    weight_buf: torch.Tensor,
    hx: torch.Tensor,
    cx: _Optional,
    output: torch.Tensor,
    grad_output: _Optional,
    grad_hy: _Optional,
    grad_cy: _Optional,
    mode: int,
    hidden_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: _Optional,
    reserve: torch.Tensor,
    output_mask: Sequence[bool],
) -> Any:
    """Gradients of the input, the first states and the weights."""
    options = (mode, num_layers, batch_first, bidirectional, list(batch_sizes), dropout)
    return _back((grad_output, grad_hy, grad_cy), (input, weight, hx, cx, *options), reserve)


@kernel("aten::_cudnn_rnn_flatten_weight")
def cudnn_rnn_flatten_weight(
    weight_arr: _Tensors,
    weight_stride0: int,
    input_size: int,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    bidirectional: bool,
) -> torch.Tensor:
    """All weights in one buffer, in the order given."""
    return torch.cat([w.reshape(-1) for w in weight_arr])
