"""Linear layers, norms, embeddings, rotary positions and the MLP of the decoder."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples import llm_quantize
from examples.llm_config import Config
from examples.llm_remat import product

Rope = tuple[Tensor, Tensor]


class Linear(nn.Linear):
    """nn.Linear whose weight may be wider than its input: it computes in the input's dtype."""

    def __init__(
        self, config: Config, inputs: int, outputs: int, name: str = "", *, bias: bool = False
    ) -> None:
        super().__init__(inputs, outputs, bias, dtype=getattr(torch, config.param_dtype))
        self.product = name
        self.quantize = config.quantize if name else "none"  # only inside the blocks

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        weight = self.weight.to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        with product(self.product):
            if self.quantize == "none":
                return F.linear(x, weight, bias)
            y = llm_quantize.linear(self.quantize, x, weight)
        return y if bias is None else y + bias


class RmsNorm(nn.RMSNorm):
    """Root mean square norm (arXiv:1910.07467) in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class LayerNorm(nn.LayerNorm):
    """Layer norm in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), bias, self.eps)


def norm(config: Config, width: int) -> nn.Module:
    """The norm that the model uses."""
    dtype = getattr(torch, config.param_dtype)
    if config.norm == "rms":
        return RmsNorm(width, eps=config.norm_eps, dtype=dtype)
    return LayerNorm(width, eps=config.norm_eps, bias=config.norm_bias, dtype=dtype)


class Embedding(nn.Embedding):
    """Rows of tokens in the compute dtype, looked up or as a product with one-hot rows."""

    def __init__(self, config: Config, rows: int) -> None:
        super().__init__(rows, config.width, dtype=getattr(torch, config.param_dtype))
        self.compute_dtype = getattr(torch, config.compute_dtype)
        self.one_hot = config.embedding == "onehot"
        self.scale = config.width**0.5 if config.scale_embedding else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        if self.one_hot:
            chosen = tokens[..., None] == torch.arange(self.num_embeddings, device=tokens.device)
            x = chosen.to(self.compute_dtype) @ self.weight.to(self.compute_dtype)
        else:
            x = F.embedding(tokens, self.weight).to(self.compute_dtype)
        return x * self.scale if self.scale != 1.0 else x


def rope_table(config: Config, length: int, device: torch.device) -> Rope:
    """Cosines and sines [T, D] of the rotary embedding (arXiv:2104.09864, equation 34)."""
    size = config.rope_dim if config.kv_rank else config.head_size
    half = torch.arange(0, size, 2, dtype=torch.float32, device=device)
    place = torch.arange(length, dtype=torch.float32, device=device)
    angle = torch.outer(place, config.rope_base ** (-half / size))  # [T, D / 2]
    angle = torch.cat((angle, angle), dim=-1)  # -> [T, D]
    dtype = getattr(torch, config.compute_dtype)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate the pairs (i, i + D / 2) of the last dimension of x [B, H, T, D]."""
    cos, sin = rope
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def clamped_swish(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x) of x below 7 (arXiv:2508.10925, section 2.2)."""
    x = x.clamp(max=7.0)
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": lambda x: F.gelu(x, approximate="tanh"),
    "clamped_swiglu": clamped_swish,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


def activate(config: Config, up: Tensor, gate: Tensor | None) -> Tensor:
    """What the down projection reads."""
    function = ACTIVATIONS[config.activation]
    if gate is None:
        return function(up)
    if config.activation == "clamped_swiglu":
        return function(gate) * (up.clamp(-7.0, 7.0) + 1)
    return function(gate) * up


class Mlp(nn.Module):
    """Two projections with an activation between, or three where it is gated (Shazeer 2020)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.config = config
        width, bias = config.width, config.mlp_bias
        self.gate = Linear(config, width, hidden, "gate", bias=bias) if config.gated else None
        self.up = Linear(config, width, hidden, "up", bias=bias)
        self.down = Linear(config, hidden, width, "down", bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        gate = None if self.gate is None else self.gate(x)
        out: Tensor = self.down(activate(self.config, self.up(x), gate))
        return out
