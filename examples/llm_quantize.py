"""Products in eight bits: for training both ways, and with stored int8 weights for serving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_INT8_MAX = 127.0
# Calibration "fixed,-224,224" of tpu-recipes (c8cfe2f6), training/ironwood/llama3.1-70b/8k-fp8-*.
STATIC_BOUND = 224.0


class Int8Product(torch.autograd.Function):
    """x [N, K] times weight [O, K] transposed; all three products of training are in int8.

    Each row of the left and each column of the right operand has its own scale, the largest
    magnitude over 127, found anew each time; rounding is to nearest (arXiv:2105.03536, section 3).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """[N, K], [O, K] -> [N, O]."""
        ctx.save_for_backward(x, weight)
        return _int8(x, weight.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of x [N, K] and weight [O, K]."""
        x, weight = ctx.saved_tensors
        (grad,) = grads
        return _int8(grad, weight), _int8(grad.t(), x)


class Float8Product(torch.autograd.Function):
    """x [N, K] times weight [O, K] transposed: e4m3 forward, gradients in e5m2.

    One scale for each tensor (arXiv:2209.05433, section 3): of x and weight by the magnitude
    `bound`, beyond which values are clipped, or by the largest magnitude where it is None, as
    always for gradients. Backward keeps x and weight in eight bits.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bound: float | None = None) -> Tensor:
        """[N, K], [O, K] -> [N, O]."""
        x8, x_scale = _scaled(x, torch.float8_e4m3fn, bound)
        weight8, weight_scale = _scaled(weight, torch.float8_e4m3fn, bound)
        ctx.save_for_backward(x8, x_scale, weight8, weight_scale)
        ctx.dtype = x.dtype
        return torch._scaled_mm(x8, weight8.t(), x_scale, weight_scale, out_dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of x [N, K] and weight [O, K]."""
        x8, x_scale, weight8, weight_scale = ctx.saved_tensors
        grad8, scale = _scaled(grads[0], torch.float8_e5m2)
        of_x = torch._scaled_mm(grad8, _columns(weight8), scale, weight_scale, out_dtype=ctx.dtype)
        of_weight = torch._scaled_mm(
            grad8.t().contiguous(), _columns(x8), scale, x_scale, out_dtype=ctx.dtype
        )
        return of_x, of_weight, None


_static: Callable[[Tensor, Tensor, float], Tensor] = Float8Product.apply
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "int8": Int8Product.apply,
    "fp8": Float8Product.apply,
    "fp8_static": lambda x, weight: _static(x, weight, STATIC_BOUND),
}


def linear(kind: str, x: Tensor, weight: Tensor) -> Tensor:
    """F.linear of x [..., K] and weight [O, K] by the product that `kind` names."""
    flat = PRODUCTS[kind](x.flatten(0, -2), weight)
    return flat.view(*x.shape[:-1], len(weight))


class Int8Linear(nn.Module):
    """A served linear layer: weights are stored in int8 with a scale for each output."""

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        scale = weight.abs().amax(1, keepdim=True).float().clamp(min=1e-12) / _INT8_MAX
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale[:, 0])
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., O]; the weights are widened to the type of x as they are read."""
        y = F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)


def _int8(left: Tensor, right: Tensor) -> Tensor:
    """[M, K] x [K, N] -> [M, N] in left's dtype."""
    left_scale, right_scale = _scale(left, 1), _scale(right, 0)
    whole = torch._int_mm(_rounded(left, left_scale), _rounded(right, right_scale))
    return (whole * left_scale * right_scale).to(left.dtype)


def _scale(x: Tensor, dim: int) -> Tensor:
    return x.abs().amax(dim, keepdim=True).float().clamp(min=1e-12) / _INT8_MAX


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).round().to(torch.int8)


def _scaled(x: Tensor, dtype: torch.dtype, bound: float | None = None) -> tuple[Tensor, Tensor]:
    """x in `dtype` and what to multiply it by."""
    most = torch.finfo(dtype).max
    if bound is None:
        scale = x.abs().amax().float().clamp(min=1e-12) / most
    else:
        x = x.clamp(-bound, bound)
        scale = torch.full((), bound / most, device=x.device)
    return (x / scale).to(dtype), scale


def _columns(x: Tensor) -> Tensor:
    """The same matrix with its columns contiguous, as a right operand has to be."""
    return x.t().contiguous().t()
