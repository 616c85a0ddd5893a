"""Shapes of ops that torch computes on CUDA or CPU only, and so has no meta functions for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchtpu.eager.missing_meta import CORRECTED
from torchtpu.eager.missing_meta import _meta as meta

_Optional = torch.Tensor | None


def _channels(x: torch.Tensor) -> torch.Tensor:
    """[C], in float32 at least."""
    return x.new_empty(x.shape[1], dtype=_wide(x))


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


@meta("batch_norm_stats")
def batch_norm_stats(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Mean and invstd of each channel."""
    return _channels(input), _channels(input)


@meta("batch_norm_update_stats")
def batch_norm_update_stats(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    running_mean: _Optional,
    running_var: _Optional,
    momentum: float,
) -> tuple[torch.Tensor, ...]:
    """Mean and variance of each channel."""
    return _channels(input), _channels(input)


@meta("batch_norm_elemt")
def batch_norm_elemt(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    """Like the input, in its memory format."""
    return torch.empty_like(input)


@meta("batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    grad_out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  # the schema's name
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    """Like the input, in its memory format."""
    return torch.empty_like(input)


@meta("batch_norm_gather_stats")
@meta("batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    mean: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, ...]:
    """Mean and invstd of each channel, in the dtype of the parts."""
    return mean.new_empty(mean.shape[1]), mean.new_empty(mean.shape[1])


@meta("batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad_out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  # the schema's name
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: _Optional,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[_Optional, ...]:
    """Two sums of each channel, and the gradients of weight and bias."""
    affine = torch.empty_like(mean) if weight is None else torch.empty_like(weight)
    return (
        torch.empty_like(mean) if input_g else None,
        torch.empty_like(mean) if input_g else None,
        torch.empty_like(affine) if weight_g else None,
        torch.empty_like(affine) if bias_g else None,
    )


@meta("fake_quantize_per_tensor_affine_cachemask")
@meta("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
@meta("fake_quantize_per_channel_affine_cachemask")
def fake_quantize_cachemask(
    self: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and where it was not clamped."""
    return torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)


@meta("_fake_quantize_learnable_per_tensor_affine_backward")
@meta("_fake_quantize_learnable_per_channel_affine_backward")
def fake_quantize_learnable_backward(
    grad: torch.Tensor,
    self: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, ...]:
    """Gradients of the input, the scales and the zero points."""
    return torch.empty_like(self), torch.empty_like(scale), torch.empty_like(zero_point)


@meta("_transform_bias_rescale_qkv")
def transform_bias_rescale_qkv(
    qkv: torch.Tensor, qkv_bias: torch.Tensor, num_heads: int
) -> tuple[torch.Tensor, ...]:
    """Three times [B, H, S, D]."""
    batch, length, width = qkv.shape
    shape: Sequence[int] = (batch, num_heads, length, width // 3 // num_heads)
    return qkv.new_empty(shape), qkv.new_empty(shape), qkv.new_empty(shape)


def _scaled_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> torch.Tensor:
    """[M, N] of any M, K and N: torch's own demands what CUDA does."""
    if self.dim() != 2 or mat2.dim() != 2:
        raise RuntimeError(
            "mat_a must be a matrix" if self.dim() != 2 else "mat_b must be a matrix"
        )
    if self.shape[1] != mat2.shape[0]:
        (m, k), (k2, n) = self.shape, mat2.shape
        raise RuntimeError(f"mat_a and mat_b shapes cannot be multiplied ({m}x{k} and {k2}x{n})")
    return self.new_empty((self.shape[0], mat2.shape[1]), dtype=out_dtype or self.dtype)


def _grouped_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: _Optional = None,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> torch.Tensor:
    """The result of groups of rows, of columns, of the contraction, or of a batch."""
    if (offs is None) != (self.dim() == mat2.dim() == 3):
        raise RuntimeError(
            f"[_grouped_mm] expected offs beside a matrix and none beside two batches, got "
            f"{self.dim()}D and {mat2.dim()}D operands with offs={offs is not None}"
        )
    if self.dim() == mat2.dim() == 2 and offs is not None:
        shape: Sequence[int] = (offs.shape[0], self.shape[0], mat2.shape[1])
    elif self.dim() == mat2.dim():
        shape = (self.shape[0], self.shape[1], mat2.shape[2])
    else:
        shape = (self.shape[-2], mat2.shape[-1])
    if (self.dim() == 3 or mat2.dim() == 3) and self.shape[-1] != mat2.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    return self.new_empty(shape, dtype=out_dtype or self.dtype)


def _scaled_grouped_mm(self: torch.Tensor, mat2: torch.Tensor, **rest: Any) -> torch.Tensor:
    """_grouped_mm in bfloat16."""
    return _grouped_mm(
        self, mat2, **(rest | {"out_dtype": rest.get("out_dtype") or torch.bfloat16})
    )


def _int4pack_mm(self: torch.Tensor, mat2: torch.Tensor, **_: Any) -> torch.Tensor:
    """[M, 8 tiles]: torch's own asks a fake tensor for its device."""
    return self.new_empty((self.shape[0], mat2.shape[0] * 8))


CORRECTED[torch.ops.aten._weight_int4pack_mm.default] = _int4pack_mm
CORRECTED[torch.ops.aten._scaled_mm.default] = _scaled_mm
CORRECTED[torch.ops.aten._scaled_mm_v2.default] = _scaled_mm
CORRECTED[torch.ops.aten._grouped_mm.default] = _grouped_mm
CORRECTED[torch.ops.aten._scaled_grouped_mm.default] = _scaled_grouped_mm
CORRECTED[torch.ops.aten._scaled_grouped_mm_v2.default] = _scaled_grouped_mm


@meta("_dirichlet_grad")
def dirichlet_grad(x: torch.Tensor, alpha: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Of the three shapes together."""
    return x + alpha + total
