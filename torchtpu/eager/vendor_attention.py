"""Attention under the names of the memory-efficient, cuDNN and Triton kernels."""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.eager import packed_attention
from torchtpu.eager.attention import fuses
from torchtpu.eager.view_ops import kernel

_Optional = torch.Tensor | None


def _efficient_inputs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: _Optional,
    starts: tuple[_Optional, _Optional],
    longest: tuple[int | None, int | None],
    mask_type: int,
    scale: float | None,
    seqlen_k: _Optional,
    window_size: int | None,
) -> tuple[Any, ...]:
    """Mask type 0 is none, 1 is causal from the first key, 2 from the last one."""
    sizes = [
        n if m is None else int(m)
        for n, m in zip((query.shape[1], key.shape[1]), longest, strict=True)
    ]
    if starts[0] is not None:
        query, key, value = (t.squeeze(0) for t in (query, key, value))
    left = window_size - 1 if window_size else None
    right = 0 if mask_type else None
    options = (*sizes, left, right, mask_type == 2, scale, "padded")
    return query, key, value, bias, *starts, seqlen_k, None, *options


@kernel("aten::_efficient_attention_forward")
def efficient_attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: _Optional,
    cu_seqlens_q: _Optional,
    cu_seqlens_k: _Optional,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
    seqlen_k: _Optional = None,
    window_size: int | None = None,
) -> Any:
    """[B, S, H, D], or [1, N, H, D] with starts."""
    starts, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    options = (custom_mask_type, scale, seqlen_k, window_size)
    inputs = _efficient_inputs(query, key, value, bias, starts, longest, *options)
    out, lse, halves = packed_attention.forward(inputs, dropout_p)
    out = out if cu_seqlens_q is None else out.unsqueeze(0)
    lse = lse if compute_log_sumexp else lse.new_empty((*lse.shape[:2], 0))
    return out, lse, halves[0], halves[1], inputs[8], inputs[9]


@kernel("aten::_efficient_attention_backward")
def efficient_attention_backward(
    grad_out_: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: _Optional,
    out: torch.Tensor,
    cu_seqlens_q: _Optional,
    cu_seqlens_k: _Optional,
    max_seqlen_q: int,
    max_seqlen_k: int,
    logsumexp: torch.Tensor,
    dropout_p: float,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    num_splits_key: int | None = None,
    window_size: int | None = None,
    shared_storage_dqdkdv: bool = False,
) -> Any:
    """Gradients of query, key, value and, where asked for, bias."""
    starts, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    inputs = _efficient_inputs(
        query, key, value, bias, starts, longest, custom_mask_type, scale, None, window_size
    )
    saved: tuple[Any, ...] = (grad_out_, out)
    if cu_seqlens_q is not None:
        saved = (grad_out_.squeeze(0), out.squeeze(0))
    halves = torch.stack([philox_seed, philox_offset]) if dropout_p else None
    *grads, of_bias = packed_attention.backward(
        (*saved, logsumexp), inputs, dropout_p, halves, bias_requires_grad
    )
    if cu_seqlens_q is not None:
        grads = [g.unsqueeze(0) for g in grads]
    return *grads, of_bias


@kernel("aten::_scaled_dot_product_efficient_attention")
def sdpa_efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: _Optional,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """[B, H, S, D]; causal from the first key."""
    given: list[Any] = [t.transpose(1, 2) for t in (query, key, value)]
    given += [attn_bias, None, None, None, None, dropout_p, int(is_causal), compute_log_sumexp]
    out, lse, seed, offset, *_ = efficient_attention_forward(*given, scale=scale)
    return out.transpose(1, 2), lse, seed, offset


@kernel("aten::_scaled_dot_product_efficient_attention_backward")
def sdpa_efficient_backward(
    grad_out_: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: _Optional,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """Gradients of query, key, value and bias."""
    grad, q, k, v, made = (t.transpose(1, 2) for t in (grad_out_, query, key, value, out))
    bias = attn_bias if attn_bias is not None and attn_bias.numel() else None
    rest = (None, None, q.shape[1], k.shape[1], logsumexp, dropout_p, philox_seed, philox_offset)
    *grads, of_bias = efficient_attention_backward(
        grad, q, k, v, bias, made, *rest, int(is_causal), grad_input_mask[3], scale=scale
    )
    return *(g.transpose(1, 2) for g in grads), of_bias


@kernel("aten::_scaled_dot_product_cudnn_attention")
def sdpa_cudnn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: _Optional,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """_scaled_dot_product_efficient_attention with a log-sum-exp of [B, H, S, 1]."""
    out, lse, seed, offset = sdpa_efficient(
        query, key, value, attn_bias, True, dropout_p, is_causal, scale=scale
    )
    length = query.shape[2]
    sums = lse[..., :length].unsqueeze(-1)
    return out, sums, None, None, length, key.shape[2], seed, offset, None


@kernel("aten::_scaled_dot_product_cudnn_attention_backward")
def sdpa_cudnn_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    attn_bias: _Optional,
    cum_seq_q: _Optional,
    cum_seq_k: _Optional,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> Any:
    """Gradients of query, key and value."""
    state = (logsumexp.squeeze(-1), philox_seed, philox_offset, dropout_p, [True] * 3 + [False])
    grads = sdpa_efficient_backward(
        grad_out, query, key, value, attn_bias, out, *state, is_causal, scale=scale
    )
    return grads[:3]


@kernel("aten::_cudnn_attention_forward")
def cudnn_attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: _Optional,
    cum_seq_q: _Optional,
    cum_seq_k: _Optional,
    max_q: int,
    max_k: int,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """[B, H, S, D], or [N, H, D] with starts and a log-sum-exp of [N, H, 1]."""
    if cum_seq_q is None:
        options = (attn_bias, compute_log_sumexp, dropout_p, is_causal)
        return sdpa_cudnn(query, key, value, *options, scale=scale)
    inputs = _cudnn_inputs(
        query, key, value, attn_bias, (cum_seq_q, cum_seq_k), (max_q, max_k), is_causal, scale
    )
    out, lse, halves = packed_attention.forward(inputs, dropout_p)
    sums = lse.t().unsqueeze(-1)
    return out, sums, cum_seq_q, cum_seq_k, max_q, max_k, halves[0], halves[1], None


def _cudnn_inputs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: _Optional,
    starts: tuple[_Optional, _Optional],
    longest: tuple[int, int],
    is_causal: bool,
    scale: float | None,
) -> tuple[Any, ...]:
    options = (*longest, None, 0 if is_causal else None, False, scale, "packed")
    return query, key, value, bias, *starts, None, None, *options


@kernel("aten::_cudnn_attention_backward")
def cudnn_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    attn_bias: _Optional,
    cum_seq_q: _Optional,
    cum_seq_k: _Optional,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> Any:
    """Gradients of query, key and value."""
    bias = attn_bias if attn_bias is not None and attn_bias.numel() else None
    if cum_seq_q is None or not cum_seq_q.numel():
        state = (logsumexp, philox_seed, philox_offset, bias, None, None, max_q, max_k)
        return sdpa_cudnn_backward(
            grad_out, query, key, value, out, *state, dropout_p, is_causal, scale=scale
        )
    inputs = _cudnn_inputs(
        query, key, value, bias, (cum_seq_q, cum_seq_k), (max_q, max_k), is_causal, scale
    )
    halves = torch.stack([philox_seed, philox_offset]) if dropout_p else None
    saved = (grad_out, out, logsumexp.squeeze(-1).t())
    return packed_attention.backward(saved, inputs, dropout_p, halves, False)[:3]


@kernel("aten::_triton_scaled_dot_attention")
def triton_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0
) -> torch.Tensor:
    """Attention without a mask."""
    out: torch.Tensor = torch.ops.aten.scaled_dot_product_attention(q, k, v, None, dropout_p)
    return out


@kernel("aten::_triton_multi_head_attention")
def triton_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: _Optional = None,
) -> torch.Tensor:
    """_native_multi_head_attention without its probabilities."""
    weights = (qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False)
    attention = torch.ops.aten._native_multi_head_attention.default
    out: torch.Tensor = attention(query, key, value, embed_dim, num_head, *weights)[0]
    return out


@kernel("aten::_fused_sdp_choice")
def fused_sdp_choice(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: _Optional = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """torch.nn.attention.SDPBackend: OVERRIDEABLE where one program computes it, else MATH."""
    backend = torch.nn.attention.SDPBackend
    fused = fuses(query, key, value, attn_mask, is_causal, enable_gqa)
    return int((backend.OVERRIDEABLE if fused else backend.MATH).value)
