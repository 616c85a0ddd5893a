"""Attention under the names of the FlashAttention kernels: dense, packed, paged and 8-bit."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from torchtpu.eager import packed_attention
from torchtpu.eager.view_ops import kernel
from torchtpu.errors import TpuError

_Optional = torch.Tensor | None


def _limit(size: int | None) -> int | None:
    return None if size is None or size < 0 else int(size)


def _flash_inputs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: tuple[_Optional, _Optional],
    longest: tuple[int, int],
    is_causal: bool,
    scale: float | None,
    window: tuple[int | None, int | None] = (None, None),
    seqused_k: _Optional = None,
    alibi_slopes: _Optional = None,
) -> tuple[Any, ...]:
    left, right = _limit(window[0]), 0 if is_causal else _limit(window[1])
    form = "rows" if starts[0] is None else "packed"
    sizes = (int(longest[0]), int(longest[1]), left, right, True, scale, form)
    return query, key, value, None, *starts, seqused_k, alibi_slopes, *sizes


@kernel("aten::_flash_attention_forward")
def flash_attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_q: _Optional,
    cum_seq_k: _Optional,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: _Optional = None,
    alibi_slopes: _Optional = None,
    block_table: _Optional = None,
    num_splits: int | None = None,
) -> Any:
    """[B, S, H, D], or [N, H, D] with starts; causal and windows count from the last key."""
    if block_table is not None:  # pages [P, page, H, D] -> [B, pages * page, H, D]
        key, value = (pool[block_table.long()].flatten(1, 2) for pool in (key, value))
        cum_seq_k = None
    inputs = _flash_inputs(
        query,
        key,
        value,
        (cum_seq_q, cum_seq_k),
        (max_q, max_k),
        is_causal,
        scale,
        (window_size_left, window_size_right),
        seqused_k,
        alibi_slopes,
    )
    out, lse, halves = packed_attention.forward(inputs, dropout_p)
    return out, lse, halves.view(torch.uint64), _unused(), query.new_empty(0)


@cache
def _unused() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64).to("tpu").view(torch.uint64)


@kernel("aten::_flash_attention_forward_no_dropout_inplace")
def flash_attention_forward_into(
    out: torch.Tensor, query: torch.Tensor, *rest: Any, **named: Any
) -> torch.Tensor:
    """_flash_attention_forward into a tensor; returns the log-sum-exp."""
    made, lse, *_ = flash_attention_forward(query, *rest, **named)
    out.copy_(made)
    found: torch.Tensor = lse
    return found


@kernel("aten::_flash_attention_forward.quantized")
def flash_attention_forward_quantized(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_q: _Optional,
    cum_seq_k: _Optional,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    q_descale: _Optional,
    k_descale: _Optional,
    v_descale: _Optional,
    **named: Any,
) -> Any:
    """_flash_attention_forward of 8-bit floats [B, S, H, D], scaled by [B, H of the keys]."""
    scales = (q_descale, k_descale, v_descale)
    if cum_seq_q is not None and any(s is not None for s in scales):
        raise TpuError(
            "[_flash_attention_forward.quantized] expected no scales for packed sequences"
        )
    given: list[Any] = [
        _descaled(x, s, 2) for x, s in zip((query, key, value), scales, strict=True)
    ]
    given += [cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask]
    return flash_attention_forward(*given, **named)


def _descaled(x: torch.Tensor, scale: _Optional, heads: int) -> torch.Tensor:
    """8-bit floats in bfloat16, times a scale [B, H] (or [B, H / n] for grouped heads)."""
    wide = x.to(torch.bfloat16)
    if scale is None:
        return wide
    scale = scale.repeat_interleave(x.shape[heads] // scale.shape[1], dim=1)
    shape = [scale.shape[0], 1, 1, 1]
    shape[heads] = scale.shape[1]
    return (wide * scale.reshape(shape)).to(torch.bfloat16)


@kernel("aten::_flash_attention_backward")
def flash_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: _Optional,
    cum_seq_k: _Optional,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: torch.Tensor,
    unused: torch.Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> Any:
    """Gradients of query, key and value."""
    starts = (None, None) if cum_seq_q is None or not cum_seq_q.numel() else (cum_seq_q, cum_seq_k)
    window = (window_size_left, window_size_right)
    inputs = _flash_inputs(query, key, value, starts, (max_q, max_k), is_causal, scale, window)
    halves = rng_state.view(torch.int64) if dropout_p else None
    return packed_attention.backward((grad_out, out, logsumexp), inputs, dropout_p, halves, False)[
        :3
    ]


@kernel("aten::_scaled_dot_product_flash_attention")
def sdpa_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """[B, H, S, D]; see _flash_attention_forward."""
    given: list[Any] = [t.transpose(1, 2) for t in (query, key, value)]
    sizes = (query.shape[2], key.shape[2])
    given += [None, None, *sizes, dropout_p, is_causal, return_debug_mask]
    made = flash_attention_forward(*given, scale=scale)
    out, lse, state, unused, debug = made
    return out.transpose(1, 2), lse, None, None, *sizes, state, unused, debug


@kernel("aten::_scaled_dot_product_flash_attention.quantized")
def sdpa_flash_quantized(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    q_descale: _Optional,
    k_descale: _Optional,
    v_descale: _Optional,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """_scaled_dot_product_flash_attention of 8-bit floats."""
    scales = (q_descale, k_descale, v_descale)
    given: list[Any] = [
        _descaled(x, s, 1) for x, s in zip((query, key, value), scales, strict=True)
    ]
    given += [dropout_p, is_causal, return_debug_mask]
    return sdpa_flash(*given, scale=scale)


@kernel("aten::_scaled_dot_product_flash_attention_backward")
def sdpa_flash_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: _Optional,
    cum_seq_k: _Optional,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> Any:
    """Gradients of query, key and value."""
    given: list[Any] = [t.transpose(1, 2) for t in (grad_out, query, key, value, out)]
    given += [logsumexp, None, None, max_q, max_k, dropout_p, is_causal]
    given += [philox_seed, philox_offset]
    grads = flash_attention_backward(*given, scale=scale)
    return tuple(g.transpose(1, 2) for g in grads)
