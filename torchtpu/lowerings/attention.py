"""Scaled dot product attention as one program forward and one backward.

softmax(scale * Q K^T + bias) V with the softmax in float32 (float64 for float64). The backward
program recomputes the probabilities from the saved log-sum-exp, as FlashAttention does (Dao et al.
2022, algorithm 4), so nothing of size S x T is kept between the two. For platform tpu both are
kernels of attention_tpu/ where the shapes allow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings import attention_tpu, random
from torchtpu.lowerings.registry import Array, lowering


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Queries grouped by the key head that they share: [B, H, G, S, D] beside [B, H, T, D]."""

    query: Array
    key: Array
    value: Array
    bias: Array | None
    causal: bool
    scale: Array | float

    @classmethod
    def of(
        cls,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None,
        causal: bool,
        scale: Array | None,
    ) -> Heads:
        """Group the query heads; a bias gets five dims too."""
        batch, heads, length, width = query.shape
        groups = heads // key.shape[1]
        if bias is not None:
            bias = bias.reshape(*(1,) * (4 - bias.ndim), *bias.shape)
            shared = (key.shape[1], groups) if bias.shape[1] == heads else (1, 1)
            bias = bias.reshape(bias.shape[0], *shared, *bias.shape[2:])
        return cls(
            query=query.reshape(batch, key.shape[1], groups, length, width),
            key=key,
            value=value,
            bias=bias,
            causal=causal,
            scale=width**-0.5 if scale is None else scale,
        )

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of scores and sums."""
        return jnp.promote_types(self.query.dtype, jnp.float32)

    def product(self, equation: str, left: Array, right: Array) -> Array:
        """An einsum that accumulates in `dtype`, of operands in the inputs' dtype."""
        left, right = left.astype(self.query.dtype), right.astype(self.query.dtype)
        return jnp.einsum(equation, left, right, preferred_element_type=self.dtype)

    def scores(self) -> Array:
        """[B, H, G, S, T], -inf where a key is masked out."""
        scores = self.product("bhgsd,bhtd->bhgst", self.query, self.key)
        scores = scores * jnp.asarray(self.scale, self.dtype)
        masked = jnp.array(-jnp.inf, self.dtype)
        if self.causal:
            rows, columns = (lax.broadcasted_iota(jnp.int32, scores.shape[-2:], d) for d in (0, 1))
            scores = jnp.where(columns <= rows, scores, masked)
        if self.bias is None:
            return scores
        if self.bias.dtype == bool:
            return jnp.where(self.bias, scores, masked)
        return scores + self.bias.astype(self.dtype)


def forward(heads: Heads, keep: Array | None) -> tuple[Array, Array]:
    """The result in the layout of the query, and the log-sum-exp; rows without a key give 0."""
    scores = heads.scores()
    top = jnp.max(scores, -1, keepdims=True)
    top = jnp.where(jnp.isneginf(top), 0, top)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, -1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1, total)
    if keep is not None:
        weights = weights * keep
    out = heads.product("bhgst,bhtd->bhgsd", weights, heads.value)
    batch, _, _, length, _ = heads.query.shape
    lse = (top + jnp.log(total)).reshape(batch, -1, length)
    return out.reshape(batch, -1, length, out.shape[-1]), lse


def kept(key: Array, heads: Heads, dropout_p: Array) -> Array:
    """0 with probability dropout_p, else 1 / (1 - dropout_p)."""
    shape = (*heads.query.shape[:-1], heads.key.shape[2])
    chance = jnp.asarray(dropout_p, jnp.float32)
    kept = random.unit(key, shape, jnp.float32) >= chance
    return jnp.where(kept, 1 / (1 - chance), 0).astype(heads.dtype)


@lowering("torchtpu::attention")
def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None,
    is_causal: bool,
    scale: Array | None,
) -> tuple[Array, Array]:
    """[B, H, S, D] queries over [B, K, T, D] keys -> [B, H, S, E] and the log-sum-exp [B, H, S]."""
    sizes = attention_tpu.taken(query, key, value, attn_bias, is_causal)
    if sizes is None:
        return forward(Heads.of(query, key, value, attn_bias, is_causal, scale), None)
    out, lse = _attention(query, key, value, attn_bias, scale, of=sizes)
    return out, lse


def _forward_in_ops(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    scale: Array | None,
    *,
    of: attention_tpu.Sizes,
) -> Sequence[Array]:
    out, lse = forward(Heads.of(query, key, value, bias, of.causal, scale), None)
    return out.astype(query.dtype), lse


_attention = attention_tpu.Forked(
    "torchtpu_attention",
    ops=_forward_in_ops,
    kernels=attention_tpu.forward_kernels,
    results=lambda query, *_, of: [
        query.update(shape=(*query.shape[:3], of.value_width), weak_type=False),
        query.update(shape=query.shape[:3], dtype=jnp.dtype(jnp.float32), weak_type=False),
    ],
)


@lowering("torchtpu::attention_dropout", key=True)
def attention_dropout(
    bits: Array,
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None,
    dropout_p: Array,
    is_causal: bool,
    scale: Array | None,
) -> tuple[Array, Array, Array, Array]:
    """attention with dropout of the probabilities; returns the random key as two int64 too."""
    heads = Heads.of(query, key, value, attn_bias, is_causal, scale)
    out, lse = forward(heads, kept(bits, heads, dropout_p))
    halves = lax.bitcast_convert_type(bits.reshape(2, 2), jnp.int64)
    return out, lse, halves[0], halves[1]


@lowering("torchtpu::attention_backward", constants={"dropout_p": (0,)})
def attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None,
    output_mask: tuple[bool, bool, bool, bool],
    out: Array,
    logsumexp: Array,
    dropout_p: Array | float,
    is_causal: bool,
    seed: Array | None,
    offset: Array | None,
    scale: Array | None,
) -> tuple[Array | None, ...]:
    """Gradients of query, key, value and bias."""
    sizes = attention_tpu.taken(query, key, value, attn_bias, is_causal)
    no_bias_gradient = attn_bias is None or not output_mask[3]
    if sizes is not None and seed is None and no_bias_gradient and any(output_mask[:3]):
        given = (grad_out, query, key, value, attn_bias, out, logsumexp, scale)
        made = iter(_attention_backward(*given, of=sizes, wanted=output_mask[:3]))
        return *(next(made) if wanted else None for wanted in output_mask[:3]), None
    heads = Heads.of(query, key, value, attn_bias, is_causal, scale)
    keep = None if seed is None or offset is None else kept(bits_of(seed, offset), heads, dropout_p)
    grads, scores = backward(heads, grad_out, None, logsumexp, keep)
    found = _wanted(grads, (query, key, value), output_mask)
    return *found, _grad_bias(scores, heads.bias, attn_bias) if output_mask[3] else None


def _wanted(
    grads: Sequence[Array], inputs: Sequence[Array], wanted: Sequence[bool]
) -> list[Array | None]:
    """Gradients in the shapes of their inputs, None for those that nobody wants."""
    return [
        g.reshape(x.shape) if w else None for g, x, w in zip(grads, inputs, wanted, strict=False)
    ]


def _backward_in_ops(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    _out: Array,
    logsumexp: Array,
    scale: Array | None,
    *,
    of: attention_tpu.Sizes,
    wanted: tuple[bool, bool, bool],
) -> Sequence[Array]:
    heads = Heads.of(query, key, value, bias, of.causal, scale)
    grads, _ = backward(heads, grad_out, None, logsumexp, None)
    found = _wanted(grads, (query, key, value), wanted)
    return [g.astype(query.dtype) for g in found if g is not None]


_attention_backward = attention_tpu.Forked(
    "torchtpu_attention_backward",
    ops=_backward_in_ops,
    kernels=attention_tpu.backward_kernels,
    results=lambda _, query, key, value, *__, of, wanted: [
        x.update(weak_type=False) for x, w in zip((query, key, value), wanted, strict=True) if w
    ],
)


def bits_of(seed: Array, offset: Array) -> Array:
    """The uint32[4] key that two int64 hold."""
    return lax.bitcast_convert_type(jnp.stack([seed, offset]), jnp.uint32).reshape(4)


def backward(
    heads: Heads, grad_out: Array, out: Array | None, logsumexp: Array, keep: Array | None
) -> tuple[tuple[Array, Array, Array], Array]:
    """Gradients of query, key and value, and those of the scores [B, H, G, S, T].

    out: the result that the log-sum-exp belongs to, where that is of more keys than these; None:
        its product with the gradient is summed from the weights, which no rounding has touched.
    """
    grouped = (*heads.query.shape[:-1], heads.value.shape[-1])
    lse = logsumexp.reshape(*heads.query.shape[:-1], 1).astype(heads.dtype)
    weights = jnp.where(jnp.isneginf(lse), 0, jnp.exp(heads.scores() - lse))
    grad = grad_out.reshape(grouped)
    slope = heads.product("bhgsd,bhtd->bhgst", grad, heads.value)
    dropped = weights
    if keep is not None:
        slope, dropped = slope * keep, weights * keep
    if out is None:
        inner = jnp.sum(weights * slope, -1, keepdims=True)
    else:
        products = grad.astype(heads.dtype) * out.reshape(grouped).astype(heads.dtype)
        inner = jnp.sum(products, -1, keepdims=True)
    scores = weights * (slope - inner)
    factor = jnp.asarray(heads.scale, heads.dtype)
    grads = (
        factor * heads.product("bhgst,bhtd->bhgsd", scores, heads.key),
        factor * heads.product("bhgst,bhgsd->bhtd", scores, heads.query),
        heads.product("bhgst,bhgsd->bhtd", dropped, grad),
    )
    return grads, scores


def _grad_bias(grad_scores: Array, grouped: Array | None, bias: Array | None) -> Array | None:
    """Sum over the dims along which the bias was broadcast."""
    if grouped is None or bias is None:
        return None
    over = tuple(
        d
        for d, (n, m) in enumerate(zip(grouped.shape, grad_scores.shape, strict=True))
        if n == 1 != m
    )
    return jnp.sum(grad_scores, over, keepdims=True).reshape(bias.shape)
