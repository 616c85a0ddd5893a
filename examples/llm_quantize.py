"""Products in eight bits: for training both ways, and with stored int8 weights for serving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_INT8_MAX = 127.0


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

    One scale for each tensor, found anew each time (arXiv:2209.05433, section 3).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """[N, K], [O, K] -> [N, O]."""
        ctx.save_for_backward(x, weight)
        return _float8(x, weight.t(), torch.float8_e4m3fn)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of x [N, K] and weight [O, K]."""
        x, weight = ctx.saved_tensors
        (grad,) = grads
        gradient = torch.float8_e5m2
        return _float8(grad, weight, gradient), _float8(grad.t(), x, gradient)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "int8": Int8Product.apply,
    "fp8": Float8Product.apply,
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


def store_int8(model: nn.Module, kind: type[nn.Linear]) -> None:
    """Replace each `kind` inside `model` by an Int8Linear of the same values."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, kind):
                setattr(module, name, Int8Linear(child.weight.data, child.bias))


def _int8(left: Tensor, right: Tensor) -> Tensor:
    """[M, K] x [K, N] -> [M, N] in left's dtype."""
    left_scale, right_scale = _scale(left, 1), _scale(right, 0)
    whole = torch._int_mm(_rounded(left, left_scale), _rounded(right, right_scale))
    return (whole * left_scale * right_scale).to(left.dtype)


def _scale(x: Tensor, dim: int) -> Tensor:
    return x.abs().amax(dim, keepdim=True).float().clamp(min=1e-12) / _INT8_MAX


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).round().to(torch.int8)


def _float8(left: Tensor, right: Tensor, left_dtype: torch.dtype) -> Tensor:
    """[M, K] x [K, N] -> [M, N] in left's dtype."""
    left8, left_scale = _scaled(left, left_dtype)
    right8, right_scale = _scaled(right.t(), torch.float8_e4m3fn)  # its K has to be innermost
    return torch._scaled_mm(left8, right8.t(), left_scale, right_scale, out_dtype=left.dtype)


def _scaled(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Contiguous x in `dtype` and what to multiply it by."""
    scale = x.abs().amax().float().clamp(min=1e-12) / torch.finfo(dtype).max
    return (x / scale).to(dtype).contiguous(), scale
