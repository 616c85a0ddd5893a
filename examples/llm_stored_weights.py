"""Served linear layers whose weights are stored in eight bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from examples.llm_config import ModelError
from examples.llm_kv_cache import quantized
from examples.llm_layers import Linear
from examples.llm_quantize import Int8Linear


class LastRows:
    """The last input in float8_e4m3fn: layers that read the same one narrow it once."""

    def __init__(self) -> None:
        self._input: Tensor | None = None
        self._made: tuple[Tensor, Tensor] | None = None

    def of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [..., K] as rows [N, K] and their scales [N]."""
        if self._made is None or self._input is not x:
            self._input, self._made = x, quantized(x.flatten(0, -2), torch.float8_e4m3fn)
        return self._made


class Float8Linear(nn.Module):
    """A product in float8_e4m3fn: a scale for each output of the weights, which are stored, and
    one for each row of the input, found anew for each input.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, last: LastRows) -> None:
        super().__init__()
        self.last = last
        narrow, scale = quantized(weight, torch.float8_e4m3fn)
        self.register_buffer("weight", narrow)
        self.register_buffer("scale", scale)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., O] in the dtype of x."""
        rows, row_scale = self.last.of(x)
        scales = row_scale[:, None], self.scale[None]
        y = torch._scaled_mm(rows, self.weight.t(), *scales, out_dtype=x.dtype)
        y = y.view(*x.shape[:-1], len(self.weight))
        return y if self.bias is None else y + self.bias.to(x.dtype)


_READ = ("kv_up",)  # layers whose weight is read and not applied: latent attention's decoding


def store(model: nn.Module, quantize: str) -> None:
    """Replace the linear layers of `model` as --quantize says: none, int8 (weights are widened
    where they are read) or fp8 (multiplied as they are). Raises ModelError for training's others.
    """
    last = LastRows()
    made: dict[str, Callable[[Linear], nn.Module]] = {
        "none": lambda layer: layer,
        "int8": lambda layer: Int8Linear(layer.weight.data, layer.bias),
        "fp8": lambda layer: Float8Linear(layer.weight.data, layer.bias, last),
    }
    if quantize not in made:
        raise ModelError(f"[serve] --quantize {quantize} trains; expected {', '.join(made)}")
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear) and name not in _READ:
                setattr(module, name, made[quantize](child))
