"""F.scaled_dot_product_attention: one program forward and one backward where the shapes allow it.

torch's C++ chooses a fused kernel through a table that Python cannot enter, so the composite op
itself is replaced: it calls the overrideable fused op, whose gradient torch knows, or decomposes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from torchtpu.eager.view_ops import kernel
from torchtpu.private import torch as private

_FUSED = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
_library = torch.library.Library("torchtpu", "FRAGMENT")
_autograd = torch.library.Library("aten", "IMPL")
_Optional = torch.Tensor | None


def _derived(name: str) -> Any:
    from torchtpu.eager import dispatch

    return dispatch.derived[name]


def _attention_meta(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> Any:
    out = _like_query(query, value.shape[-1])
    sums = torch.float64 if query.dtype == torch.float64 else torch.float32
    return out, query.new_empty(query.shape[:-1], dtype=sums)


def _attention_dropout_meta(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> Any:
    seeds = (query.new_empty((), dtype=torch.int64) for _ in range(2))
    return (*_attention_meta(query, key, value), *seeds)


def _attention_backward_meta(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: _Optional,
    output_mask: list[bool],
    *_: Any,
) -> Any:
    inputs = (query, key, value, attn_bias)
    return tuple(
        torch.empty_like(t) if wanted and t is not None else None
        for t, wanted in zip(inputs, output_mask, strict=True)
    )


def _like_query(query: torch.Tensor, width: int) -> torch.Tensor:
    """An empty result with the query's order of dims, so that a transpose back is a view."""
    order = sorted(range(3), key=query.stride, reverse=True)
    shape = [query.shape[d] for d in order]
    back = [order.index(d) for d in range(3)]
    return query.new_empty((*shape, width)).permute(*back, 3)


for _schema, _meta in (
    (
        "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool is_causal, "
        "float? scale) -> (Tensor, Tensor)",
        _attention_meta,
    ),
    (
        "attention_dropout(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, "
        "float dropout_p, bool is_causal, float? scale) -> (Tensor, Tensor, Tensor, Tensor)",
        _attention_dropout_meta,
    ),
    (
        "attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, "
        "Tensor? attn_bias, bool[4] output_mask, Tensor out, Tensor logsumexp, float dropout_p, "
        "bool is_causal, Tensor? seed, Tensor? offset, float? scale) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        _attention_backward_meta,
    ),
):
    _library.define(_schema)
    _library.impl(_schema.partition("(")[0], _meta, "CompositeExplicitAutograd")


@kernel("aten::_scaled_dot_product_fused_attention_overrideable")
def fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: _Optional = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """The fused forward: result, log-sum-exp, and the random key where there is dropout."""
    if dropout_p:
        call = _derived("torchtpu::attention_dropout")
        out, lse, seed, offset = call(query, key, value, attn_bias, dropout_p, is_causal, scale)
    else:
        out, lse = _derived("torchtpu::attention")(query, key, value, attn_bias, is_causal, scale)
        seed = offset = _no_key()
    return out, lse, None, None, query.shape[-2], key.shape[-2], seed, offset, None


@cache
def _no_key() -> torch.Tensor:
    """What stands for the random key without dropout: torch's schema has no None there."""
    return torch.empty((), dtype=torch.int64, device="tpu")


@kernel("aten::_scaled_dot_product_fused_attention_overrideable_backward")
def fused_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: _Optional,
    grad_input_mask: list[bool],
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: _Optional,
    cum_seq_k: _Optional,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: _Optional,
    philox_offset: _Optional,
    *,
    scale: float | None = None,
) -> Any:
    """The fused backward."""
    return _derived("torchtpu::attention_backward")(
        grad_out,
        query,
        key,
        value,
        attn_bias,
        grad_input_mask,
        out,
        logsumexp,
        dropout_p,
        is_causal,
        philox_seed if dropout_p else None,
        philox_offset if dropout_p else None,
        scale,
    )


@kernel("aten::scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: _Optional = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention by the fused op, or by torch's own composition for what that does not cover."""
    if fuses(query, key, value, attn_mask, is_causal, enable_gqa):
        result: torch.Tensor = _FUSED(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale
        )[0]
        return result
    composed: torch.Tensor = torch.ops.aten.scaled_dot_product_attention.default.decompose(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return composed


_autograd.impl("scaled_dot_product_attention", scaled_dot_product_attention, "AutogradPrivateUse1")


def fuses(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: _Optional,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Whether the fused op computes an attention of these; sdpa_kernel(MATH) turns it off."""
    return (
        private.is_overrideable_sdp_enabled()
        and _fits(query, key, value, enable_gqa)
        and _mask_fits(query, key, attn_mask, is_causal)
    )


def _fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> bool:
    """[B, H, S, D] with [B, K, T, D] and [B, K, T, E]: heads shared evenly, nothing empty."""
    q, k, v = query.shape, key.shape, value.shape
    return (
        len(q) == len(k) == len(v) == 4
        and q[0] == k[0] == v[0]
        and k[1:3] == v[1:3]
        and q[3] == k[3]
        and (q[1] == k[1] or (enable_gqa and k[1] > 0 and q[1] % k[1] == 0))
        and query.dtype == key.dtype == value.dtype
        and query.is_floating_point()
        and 0 not in (*q, *k, *v)
    )


def _mask_fits(query: torch.Tensor, key: torch.Tensor, mask: _Optional, is_causal: bool) -> bool:
    if mask is None:
        return True
    full = (*query.shape[:-1], key.shape[-2])
    return (
        not is_causal
        and 1 < mask.dim() <= 4
        and mask.device == query.device
        and mask.dtype in (torch.bool, query.dtype)
        and all(n in (1, m) for n, m in zip(mask.shape[::-1], full[::-1], strict=False))
    )
