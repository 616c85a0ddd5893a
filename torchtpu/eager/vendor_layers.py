"""Normalization, sampling, losses and dropout that torch names for a vendor's library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchtpu.eager.capture import CannotCapture
from torchtpu.eager.composed import composed
from torchtpu.eager.view_ops import kernel

_Optional = torch.Tensor | None


@composed("aten::cudnn_batch_norm")
def cudnn_batch_norm(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    weight: torch.Tensor,
    bias: _Optional,
    running_mean: _Optional,
    running_var: _Optional,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> Any:
    """native_batch_norm and an empty reserve."""
    statistics = (running_mean, running_var, training, exponential_average_factor, epsilon)
    made = torch.ops.aten.native_batch_norm.default(input, weight, bias, *statistics)
    return *made, input.new_empty(0, dtype=torch.uint8)


@composed("aten::miopen_batch_norm")
def miopen_batch_norm(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    weight: torch.Tensor,
    bias: _Optional,
    running_mean: _Optional,
    running_var: _Optional,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> Any:
    """native_batch_norm."""
    statistics = (running_mean, running_var, training, exponential_average_factor, epsilon)
    return torch.ops.aten.native_batch_norm.default(input, weight, bias, *statistics)


@composed("aten::miopen_batch_norm_backward")
def batch_norm_backward(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    running_mean: _Optional,
    running_var: _Optional,
    save_mean: _Optional,
    save_var: _Optional,
    epsilon: float,
) -> Any:
    """Gradients of input, weight and bias in training; save_var is 1 / std."""
    saved = (running_mean, running_var, save_mean, save_var, True, epsilon, [True] * 3)
    backward = torch.ops.aten.native_batch_norm_backward.default
    return backward(grad_output, input, weight, *saved)


@composed("aten::cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    running_mean: _Optional,
    running_var: _Optional,
    save_mean: _Optional,
    save_var: _Optional,
    epsilon: float,
    reserveSpace: torch.Tensor,
) -> Any:
    """miopen_batch_norm_backward with a reserve that nothing is kept in."""
    saved = (running_mean, running_var, save_mean, save_var, epsilon)
    return batch_norm_backward(input, grad_output, weight, *saved)


@composed("aten::cudnn_grid_sampler")
def cudnn_grid_sampler(self: torch.Tensor, grid: torch.Tensor) -> Any:
    """Bilinear samples with zeros outside and corners aligned."""
    return torch.ops.aten.grid_sampler_2d.default(self, grid, 0, 0, True)


@composed("aten::cudnn_grid_sampler_backward")
def cudnn_grid_sampler_backward(
    self: torch.Tensor, grid: torch.Tensor, grad_output: torch.Tensor
) -> Any:
    """Gradients of the input and the grid."""
    backward = torch.ops.aten.grid_sampler_2d_backward.default
    return backward(grad_output, self, grid, 0, 0, True, [True, True])


@composed("aten::cudnn_affine_grid_generator")
def cudnn_affine_grid_generator(theta: torch.Tensor, N: int, C: int, H: int, W: int) -> Any:
    """The grid of an affine map with corners aligned, [N, H, W, 2]."""
    return torch.ops.aten.affine_grid_generator.default(theta, [N, C, H, W], True)


@composed("aten::cudnn_affine_grid_generator_backward")
def cudnn_affine_grid_generator_backward(grad: torch.Tensor, N: int, C: int, H: int, W: int) -> Any:
    """The gradient of theta, [N, 2, 3]."""
    return torch.ops.aten.affine_grid_generator_backward.default(grad, [N, C, H, W], True)


@kernel("aten::_use_cudnn_ctc_loss")
@kernel("aten::_use_cudnn_ctc_loss.Tensor")
@kernel("aten::_use_miopen_ctc_loss")
@kernel("aten::_use_miopen_ctc_loss.Tensor")
def use_vendor_ctc_loss(*_: Any, **__: Any) -> bool:
    """Never: _ctc_loss is this device's."""
    return False


@composed("aten::_cudnn_ctc_loss", "aten::miopen_ctc_loss")
def vendor_ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int,
    deterministic: bool,
    zero_infinity: bool,
) -> Any:
    """The losses and their gradients, which backward only scales."""
    lengths = (list(input_lengths), list(target_lengths))
    loss, log_alpha = torch.ops.aten._ctc_loss.default(
        log_probs, targets, *lengths, blank, zero_infinity
    )
    grad = torch.ops.aten._ctc_loss_backward.default(
        torch.ones_like(loss), log_probs, targets, *lengths, loss, log_alpha, blank, zero_infinity
    )
    return (loss.masked_fill(loss.isinf(), 0) if zero_infinity else loss), grad


@composed("aten::_cudnn_ctc_loss.Tensor", "aten::miopen_ctc_loss.Tensor")
def vendor_ctc_loss_tensor(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *rest: Any,
    **named: Any,
) -> Any:
    """The lengths are read on the host."""
    lengths = (input_lengths.tolist(), target_lengths.tolist())
    return vendor_ctc_loss(log_probs, targets, *lengths, *rest, **named)


@composed("aten::_fused_dropout")
def fused_dropout(
    self: torch.Tensor, p: float, generator: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep each element with probability p, scaled by 1 / p; and the mask."""
    mask = torch.empty_like(self, dtype=torch.uint8).bernoulli_(p, generator=generator)
    return masked_scale(self, mask, 1 / p), mask


@composed("aten::_masked_scale")
def masked_scale(self: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """self * mask * scale."""
    wide = self.float() if self.dtype in (torch.float16, torch.bfloat16) else self
    return (wide * mask * scale).to(self.dtype)


@kernel("aten::_assert_async")
def assert_async(self: torch.Tensor) -> None:
    """Raise where a value is 0; a captured program has no place to raise from and goes on."""
    assert_async_message(self, "Expected Tensor with single nonzero value, but got zero")


@kernel("aten::_assert_async.msg")
def assert_async_message(self: torch.Tensor, assert_msg: str) -> None:
    """_assert_async with a message of one's own."""
    if self.numel() != 1:
        values = "more than one value" if self.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {values} is ambiguous")
    try:
        holds = bool(self.item())
    except CannotCapture:
        return
    if not holds:
        raise RuntimeError(assert_msg)


@kernel("aten::_cudnn_init_dropout_state")
def cudnn_init_dropout_state(
    dropout: float,
    train: bool,
    dropout_seed: int,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """The seed as 8 bytes: what draws here is the device's generator."""
    seed = torch.tensor([dropout_seed], dtype=torch.int64)
    return seed.view(torch.uint8).to(device or "tpu")
