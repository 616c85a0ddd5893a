"""nn.TransformerEncoderLayer and nn.MultiheadAttention in evaluation: one op each."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from torchtpu.lowerings.matmul import product
from torchtpu.lowerings.normalization import native_layer_norm
from torchtpu.lowerings.registry import Array, lowering


def _linear(x: Array, weight: Array, bias: Array) -> Array:
    return (product(x, weight.T) + bias).astype(x.dtype)


def _masked(scores: Array, mask: Array | None, mask_type: int | None) -> Array:
    """[B, H, S, T] scores, -inf at True; mask type 0 is [S, T], 1 is [B, T], 2 is [B, H, S, T]."""
    if mask is None:
        return scores
    if mask_type == 1:
        mask = mask[:, None, None, :]
    if mask.dtype == bool:
        return jnp.where(mask, -jnp.inf, scores)
    return scores + mask


@dataclass(frozen=True, kw_only=True)
class _Projections:
    heads: int
    qkv_weight: Array
    qkv_bias: Array
    out_weight: Array
    out_bias: Array


def _attend(
    query: Array,
    key: Array,
    value: Array,
    weights: _Projections,
    mask: Array | None,
    mask_type: int | None,
) -> tuple[Array, Array]:
    """Multi-head attention of [B, S, D] inputs, and its probabilities [B, H, S, T]."""
    projections = zip(
        (query, key, value),
        jnp.split(weights.qkv_weight, 3),
        jnp.split(weights.qkv_bias, 3),
        strict=True,
    )
    q, k, v = (  # [B, S, H * D] -> [B, H, S, D]
        jnp.moveaxis(_linear(x, w, b).reshape(*x.shape[:2], weights.heads, -1), 2, 1)
        for x, w, b in projections
    )
    scores = product(q * q.shape[-1] ** -0.5, jnp.swapaxes(k, 2, 3))
    chances = jax.nn.softmax(_masked(scores, mask, mask_type), axis=-1).astype(q.dtype)
    joined = jnp.moveaxis(product(chances, v).astype(q.dtype), 1, 2).reshape(query.shape)
    return _linear(joined, weights.out_weight, weights.out_bias), chances


@lowering("aten::_native_multi_head_attention")
def native_multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    embed_dim: int,
    num_head: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    mask: Array | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Array, Array]:
    """Attention and, where asked for, its probabilities (averaged over heads)."""
    weights = _Projections(
        heads=num_head,
        qkv_weight=qkv_weight,
        qkv_bias=qkv_bias,
        out_weight=proj_weight,
        out_bias=proj_bias,
    )
    out, chances = _attend(query, key, value, weights, mask, mask_type)
    if not need_weights:
        return out, jnp.zeros((0,), out.dtype)
    return out, jnp.mean(chances, axis=1) if average_attn_weights else chances


@lowering("aten::_transformer_encoder_layer_fwd")
def transformer_encoder_layer_fwd(
    src: Array,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    use_gelu: bool,
    norm_first: bool,
    eps: Array,
    norm_weight_1: Array,
    norm_bias_1: Array,
    norm_weight_2: Array,
    norm_bias_2: Array,
    ffn_weight_1: Array,
    ffn_bias_1: Array,
    ffn_weight_2: Array,
    ffn_bias_2: Array,
    mask: Array | None = None,
    mask_type: int | None = None,
) -> Array:
    """Attention and feed-forward, each with its residual and normalization."""
    weights = _Projections(
        heads=num_heads,
        qkv_weight=qkv_weight,
        qkv_bias=qkv_bias,
        out_weight=proj_weight,
        out_bias=proj_bias,
    )

    def normal(x: Array, weight: Array, bias: Array) -> Array:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return native_layer_norm(wide, (x.shape[-1],), weight, bias, eps)[0].astype(x.dtype)

    def feed_forward(x: Array) -> Array:
        hidden = _linear(x, ffn_weight_1, ffn_bias_1)
        hidden = jax.nn.gelu(hidden, approximate=False) if use_gelu else jax.nn.relu(hidden)
        return _linear(hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        inner = normal(src, norm_weight_1, norm_bias_1)
        x = src + _attend(inner, inner, inner, weights, mask, mask_type)[0]
        return x + feed_forward(normal(x, norm_weight_2, norm_bias_2))
    x = src + _attend(src, src, src, weights, mask, mask_type)[0]
    x = normal(x, norm_weight_1, norm_bias_1)
    return normal(x + feed_forward(x), norm_weight_2, norm_bias_2)


@lowering("aten::_transform_bias_rescale_qkv")
def transform_bias_rescale_qkv(
    qkv: Array, qkv_bias: Array, num_heads: int
) -> tuple[Array, Array, Array]:
    """[B, S, 3 H D] plus bias -> three [B, H, S, D], the queries divided by sqrt(D)."""
    batch, length, width = qkv.shape
    parts = (qkv + qkv_bias).reshape(batch, length, 3, num_heads, width // 3 // num_heads)
    query, key, value = jnp.moveaxis(parts, (2, 3), (0, 2))
    return query / jnp.sqrt(query.shape[-1]).astype(query.dtype), key, value


def _spread_mask(mask: Array, shape: tuple[int, ...], mask_type: int | None) -> Array:
    """A mask beside [B, H, S, T] scores: type 0 is [S, T], 1 is [B, T], 2 has their shape."""
    if mask_type == 1 and mask.shape != shape:
        mask = mask[:, None, None, :]
    return jnp.broadcast_to(mask, shape)


@lowering("aten::_masked_softmax")
def masked_softmax(
    self: Array, mask: Array, dim: int | None = None, mask_type: int | None = None
) -> Array:
    """Softmax over the elements that the mask leaves (False); 0 where it is True."""
    axis = self.ndim - 1 if dim is None else dim
    wide = self.astype(jnp.promote_types(self.dtype, jnp.float32))
    scores = jnp.where(_spread_mask(mask, self.shape, mask_type), -jnp.inf, wide)
    return jax.nn.softmax(scores, axis=axis) if self.size else self


@lowering("aten::_masked_softmax_backward")
def masked_softmax_backward(
    grad_output: Array, output: Array, mask: Array, dim: int | None = None
) -> Array:
    """The gradient of softmax where the mask leaves an element, 0 elsewhere."""
    axis = output.ndim - 1 if dim is None else dim
    out = output.astype(jnp.promote_types(output.dtype, jnp.float32))
    grad = jnp.where(mask, 0, grad_output.astype(out.dtype))
    kept = jnp.where(mask, 0, out)
    slope = out * (grad - jnp.sum(grad * kept, axis, keepdims=True))
    return jnp.where(mask, 0, slope)
