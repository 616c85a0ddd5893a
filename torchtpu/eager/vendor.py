"""Ops that torch names for a vendor's library, as the general ops of the same mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchtpu.eager import (
    flash_attention,
    quantize,
    semi_structured,
    vendor_attention,
    vendor_layers,
    vendor_meta,
    vendor_recurrent,
)
from torchtpu.eager.composed import composed, fill
from torchtpu.eager.view_ops import kernel

del flash_attention, quantize, semi_structured
del vendor_attention, vendor_layers, vendor_meta, vendor_recurrent
_Optional = torch.Tensor | None
_Sizes = Sequence[int]
_convolution = torch.ops.aten.convolution.default
_convolution_backward = torch.ops.aten.convolution_backward.default


@composed("aten::cudnn_convolution")
def cudnn_convolution(
    self: torch.Tensor,
    weight: torch.Tensor,
    padding: _Sizes,
    stride: _Sizes,
    dilation: _Sizes,
    groups: int,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
) -> Any:
    """A convolution without bias."""
    return _plain(self, weight, None, stride, padding, dilation, groups)


@composed("aten::cudnn_convolution_transpose")
def cudnn_convolution_transpose(
    self: torch.Tensor,
    weight: torch.Tensor,
    padding: _Sizes,
    output_padding: _Sizes,
    stride: _Sizes,
    dilation: _Sizes,
    groups: int,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
) -> Any:
    """A transposed convolution without bias."""
    return _convolution(self, weight, None, stride, padding, dilation, True, output_padding, groups)


@composed("aten::miopen_convolution", "aten::miopen_depthwise_convolution")
def miopen_convolution(
    self: torch.Tensor,
    weight: torch.Tensor,
    bias: _Optional,
    padding: _Sizes,
    stride: _Sizes,
    dilation: _Sizes,
    groups: int,
    benchmark: bool,
    deterministic: bool,
) -> Any:
    """A convolution; the depthwise one has as many groups as channels."""
    return _plain(self, weight, bias, stride, padding, dilation, groups)


@composed("aten::miopen_convolution_transpose")
def miopen_convolution_transpose(
    self: torch.Tensor,
    weight: torch.Tensor,
    bias: _Optional,
    padding: _Sizes,
    output_padding: _Sizes,
    stride: _Sizes,
    dilation: _Sizes,
    groups: int,
    benchmark: bool,
    deterministic: bool,
) -> Any:
    """A transposed convolution."""
    return _convolution(self, weight, bias, stride, padding, dilation, True, output_padding, groups)


@composed("aten::cudnn_convolution_relu", "aten::miopen_convolution_relu")
def convolution_relu(
    self: torch.Tensor,
    weight: torch.Tensor,
    bias: _Optional,
    stride: _Sizes,
    padding: _Sizes,
    dilation: _Sizes,
    groups: int,
) -> Any:
    """relu(convolution)."""
    return _plain(self, weight, bias, stride, padding, dilation, groups).relu_()


@composed("aten::cudnn_convolution_add_relu", "aten::miopen_convolution_add_relu")
def convolution_add_relu(
    self: torch.Tensor,
    weight: torch.Tensor,
    z: torch.Tensor,
    alpha: float | None,
    bias: _Optional,
    stride: _Sizes,
    padding: _Sizes,
    dilation: _Sizes,
    groups: int,
) -> Any:
    """relu(convolution + alpha * z)."""
    made = _plain(self, weight, bias, stride, padding, dilation, groups)
    return made.add_(z, alpha=1 if alpha is None else alpha).relu_()


@composed("aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d")
def slow_conv_transpose(
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: _Sizes,
    bias: _Optional = None,
    stride: _Sizes = (1,),
    padding: _Sizes = (0,),
    output_padding: _Sizes = (0,),
    dilation: _Sizes = (1,),
) -> Any:
    """A transposed convolution of a batch, or of one sample without its batch dim."""
    batch = _batched(self, kernel_size)
    made = _convolution(batch, weight, bias, stride, padding, dilation, True, output_padding, 1)
    return made if batch is self else made.squeeze(0)


@composed("aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d")
def slow_conv_dilated(
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: _Sizes,
    bias: _Optional = None,
    stride: _Sizes = (1,),
    padding: _Sizes = (0,),
    dilation: _Sizes = (1,),
) -> Any:
    """A convolution of a batch, or of one sample without its batch dim."""
    batch = _batched(self, kernel_size)
    made = _plain(batch, weight, bias, stride, padding, dilation, 1)
    return made if batch is self else made.squeeze(0)


@composed("aten::_slow_conv2d_forward", "aten::slow_conv3d_forward")
def slow_conv_forward(
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: _Sizes,
    bias: _Optional,
    stride: _Sizes,
    padding: _Sizes,
) -> Any:
    """A convolution without dilation; the weight may have its last dims flattened."""
    return slow_conv_dilated(
        self, _unflattened(weight, kernel_size), kernel_size, bias, stride, padding
    )


@composed("aten::_slow_conv2d_backward.output_mask")
def slow_conv2d_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: _Sizes,
    stride: _Sizes,
    padding: _Sizes,
    output_mask: Sequence[bool],
) -> Any:
    """Gradients of input, weight and bias."""
    full = _unflattened(weight, kernel_size)
    grads = _convolution_backward(
        grad_output,
        self,
        full,
        [weight.shape[0]],
        stride,
        padding,
        [1, 1],
        False,
        [0, 0],
        1,
        output_mask,
    )
    return grads[0], None if grads[1] is None else grads[1].view(weight.shape), grads[2]


@kernel("aten::_slow_conv2d_backward.grad_input")
def slow_conv2d_backward_out(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: _Sizes,
    stride: _Sizes,
    padding: _Sizes,
    *,
    grad_input: torch.Tensor,
    grad_weight: torch.Tensor,
    grad_bias: torch.Tensor,
) -> Any:
    """All three gradients, into the tensors given."""
    given = (grad_output, self, weight, kernel_size, stride, padding)
    fill([grad_input, grad_weight, grad_bias], slow_conv2d_backward(*given, [True] * 3))
    return grad_input, grad_weight, grad_bias


@composed("aten::_conv_depthwise2d", "aten::conv_depthwise3d")
def conv_depthwise(
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: _Sizes,
    bias: _Optional,
    stride: _Sizes,
    padding: _Sizes,
    dilation: _Sizes,
) -> Any:
    """A convolution in which every channel is a group."""
    return _plain(self, weight, bias, stride, padding, dilation, self.shape[-len(kernel_size) - 1])


def _plain(
    self: torch.Tensor,
    weight: torch.Tensor,
    bias: _Optional,
    stride: _Sizes,
    padding: _Sizes,
    dilation: _Sizes,
    groups: int,
) -> Any:
    return _convolution(self, weight, bias, stride, padding, dilation, False, [0], groups)


def _batched(self: torch.Tensor, kernel_size: _Sizes) -> torch.Tensor:
    return self.unsqueeze(0) if self.dim() == len(kernel_size) + 1 else self


def _unflattened(weight: torch.Tensor, kernel_size: _Sizes) -> torch.Tensor:
    """[O, C * K] -> [O, C, *K]."""
    return weight.reshape(weight.shape[0], -1, *kernel_size) if weight.dim() == 2 else weight
