"""Quantization's host decisions: empty observers, and quantized dtypes, which the device lacks."""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.eager.view_ops import kernel
from torchtpu.errors import TpuError


@kernel("aten::_fused_moving_avg_obs_fq_helper")
def moving_average_fake_quantize(
    self: torch.Tensor,
    observer_on: torch.Tensor,
    fake_quant_on: torch.Tensor,
    running_min: torch.Tensor,
    running_max: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Any:
    """The lowering, after an observer of rows that has seen nothing got as many entries as rows."""
    from torchtpu.eager import dispatch

    if per_row_fake_quant and not running_min.numel():
        first = (float("inf"), float("-inf"), 1, 0)
        for state, value in zip((running_min, running_max, scale, zero_point), first, strict=True):
            state.resize_(self.shape[ch_axis]).fill_(value)
    given = (observer_on, fake_quant_on, running_min, running_max, scale, zero_point)
    bounds = (averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant)
    return dispatch.derived["aten::_fused_moving_avg_obs_fq_helper"](self, *given, *bounds)


@kernel("aten::dequantize.self")
def dequantize(self: torch.Tensor) -> torch.Tensor:
    """In float32, as torch's CPU does with a tensor that is not quantized."""
    return self.to(torch.float32)


def _refuses(name: str) -> None:
    @kernel(f"aten::{name}")
    def refuse(self: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        raise TpuError(
            f"[{name}] expected int8 or uint8 values beside scales of their own, got a quantized "
            "dtype: TPU tensors have none; quantize with torchao, or simulate it with "
            "fake_quantize_per_tensor_affine, or call this on the CPU"
        )


for _name in (
    "quantize_per_tensor",
    "quantize_per_tensor.tensor_qparams",
    "quantize_per_tensor.tensors",
    "quantize_per_tensor_dynamic",
    "quantize_per_channel",
    "_make_per_tensor_quantized_tensor",
    "_make_per_channel_quantized_tensor",
):
    _refuses(_name)
