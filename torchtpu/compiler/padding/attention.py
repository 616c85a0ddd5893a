"""Fused attention as products and a softmax, for where the positions are padded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchtpu.compiler.padding.layout import Unpaddable

Tensor = Any  # torch.Tensor, of symbolic sizes: most calls on one return Any


def _wide(x: Tensor) -> Tensor:
    half = x.dtype in (torch.float16, torch.bfloat16)
    return x.to(torch.float32) if half else x


def _scores(q: Tensor, k: Tensor, causal: bool, bias: Tensor | None, factor: Any) -> Tensor:
    scores = _wide(q) @ _wide(k).transpose(-2, -1) * factor  # [B, H, L, S]
    if causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if bias is None:
        return scores
    if bias.dtype == torch.bool:
        return scores.masked_fill(~bias, -math.inf)
    return scores + bias


def _weights(scores: Tensor, log_sum: Tensor) -> Tensor:
    finite = log_sum.masked_fill(log_sum == -math.inf, 0)  # a row without any key: zeros
    return (scores - finite.unsqueeze(-1)).exp()


def _factor(query: Tensor, scale: float | None) -> Any:
    return query.shape[-1] ** -0.5 if scale is None else scale


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the result, its scores materialised, and their log-sum-exp."""
    if dropout_p:
        raise Unpaddable("attention with dropout over a varying number of positions")
    scores = _scores(query, key, is_causal, attn_mask, _factor(query, scale))
    log_sum = scores.logsumexp(-1)
    return (_weights(scores, log_sum) @ _wide(value)).to(query.dtype), log_sum


def _gradients(
    grad_out: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients by q, k, v and the scores (FlashAttention, arXiv 2205.14135, algorithm 4)."""
    factor = _factor(qkv[0], scale)
    q, k, v, g = (_wide(x) for x in (*qkv, grad_out))
    p = _weights(_scores(q, k, causal, bias, factor), logsumexp)
    dp = g @ v.transpose(-2, -1)
    ds = p * (dp - (g * _wide(out)).sum(-1, keepdim=True))
    dq, dk, dv = ds @ k * factor, ds.transpose(-2, -1) @ q * factor, p.transpose(-2, -1) @ g
    return dq.to(qkv[0].dtype), dk.to(qkv[1].dtype), dv.to(qkv[2].dtype), ds


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the CPU's fused op."""
    qkv = (query, key, value)
    return _gradients(grad_out, qkv, attn_mask, out, logsumexp, is_causal, scale)[:3]


def fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Return the nine results of the op that other backends override."""
    out, log_sum = attention(
        query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale
    )
    seed, offset = (query.new_zeros((), dtype=torch.int64) for _ in range(2))
    return out, log_sum, None, None, query.shape[-2], key.shape[-2], seed, offset, None


def fused_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    grad_input_mask: list[bool],
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> list[Tensor | None]:
    """Return the wanted gradients of that op."""
    qkv = (query, key, value)
    *found, ds = _gradients(grad_out, qkv, attn_bias, out, logsumexp, is_causal, scale)
    if attn_bias is not None and grad_input_mask[3]:
        found.append(ds.sum_to_size(attn_bias.shape).to(attn_bias.dtype))
    else:
        found.append(None)
    return [g if wanted else None for g, wanted in zip(found, grad_input_mask, strict=True)]


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": fused,
    "_scaled_dot_product_fused_attention_overrideable_backward": fused_backward,
}
