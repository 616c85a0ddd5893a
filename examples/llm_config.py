"""The sizes of a decoder, and those of published ones by name (llm_models.toml)."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

MODELS = Path(__file__).with_name("llm_models.toml")
Activation = Literal["swiglu", "geglu", "clamped_swiglu", "gelu", "relu"]


class ModelError(ValueError):
    """Sizes that make no model, or the name of no model."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and variants of a decoder; the defaults are those of the Llama family.

    A mixture of experts has `experts` > 0; latent attention (arXiv:2405.04434, section 2.1) has
    `kv_rank` > 0, and then `head_dim` is not used. `window` > 0 limits attention to that many
    tokens in all layers but every `full_attention_every`-th.
    """

    vocabulary: int = 128_256
    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 0  # 0: width / heads
    hidden: int = 14_336
    activation: Activation = "swiglu"
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True  # of a layer norm
    norm_eps: float = 1e-5
    tied: bool = False
    scale_embedding: bool = False  # by sqrt(width)
    learned_positions: int = 0  # 0: rotary
    rope_base: float = 10_000.0
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norm: bool = False  # a norm behind attention and MLP too
    parallel_block: bool = False  # attention and MLP read the same norm
    window: int = 0
    full_attention_every: int = 1
    attention_block: int = 0  # queries that a window is computed for together; 0: the window
    q_rank: int = 0
    kv_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_hidden: int = 0
    shared_experts: int = 0
    first_dense_layers: int = 0
    moe_every: int = 1
    router: Literal["softmax", "sigmoid"] = "softmax"
    capacity_factor: float = 0.0  # 0: no token is dropped
    routing: Literal["learned", "balanced"] = "learned"
    dispatch: Literal["gather", "einsum"] = "gather"
    attention: Literal["sdpa", "math"] = "sdpa"
    embedding: Literal["gather", "onehot"] = "gather"
    quantize: Literal["none", "int8", "fp8", "fp8_static"] = "none"
    compute_dtype: str = "bfloat16"
    param_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Check what no layer could say better. Raises ModelError."""
        if self.heads % self.kv_heads:
            raise ModelError(f"[llm] kv_heads={self.kv_heads} does not divide heads={self.heads}")
        if not self.head_dim and not self.kv_rank and self.width % self.heads:
            raise ModelError(
                f"[llm] heads={self.heads} does not divide width={self.width}; give --head-dim"
            )
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ModelError(
                f"[llm] experts_per_token expected 1 to {self.experts}, "
                f"got {self.experts_per_token}"
            )
        if self.experts and self.expert_hidden < 1:
            raise ModelError("[llm] a mixture of experts needs expert_hidden of at least 1")

    @property
    def head_size(self) -> int:
        """Width of one query and key head."""
        if self.kv_rank:
            return self.nope_dim + self.rope_dim
        return self.head_dim or self.width // self.heads

    @property
    def gated(self) -> bool:
        """Whether the MLP has a third matrix whose product gates the second's."""
        return self.activation not in ("gelu", "relu")

    def is_moe(self, layer: int) -> bool:
        """Whether the MLP of this layer is a mixture of experts."""
        late = layer >= self.first_dense_layers
        return self.experts > 0 and late and (layer + 1) % self.moe_every == 0

    def window_of(self, layer: int) -> int:
        """How many tokens back this layer attends; 0: all."""
        return 0 if (layer + 1) % self.full_attention_every == 0 else self.window


@cache
def published() -> dict[str, dict[str, Any]]:
    """Each table of llm_models.toml by the model's name."""
    return tomllib.loads(MODELS.read_text(encoding="utf-8"))


def named(name: str) -> dict[str, Any]:
    """Fields of Config of a published model. Raises ModelError with the names there are."""
    if name not in published():
        near = difflib.get_close_matches(name, published(), n=1, cutoff=0.4)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ModelError(
            f"[llm] unknown model {name!r}{hint}; expected one of {', '.join(published())}"
        )
    known = {f.name for f in fields(Config)}
    return {key: value for key, value in published()[name].items() if key in known}
