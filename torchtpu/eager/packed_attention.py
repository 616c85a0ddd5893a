"""The private ops behind flash attention and its relatives, and how they are called."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

_Optional = torch.Tensor | None
_library = torch.library.Library("torchtpu", "FRAGMENT")
_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? starts_q, Tensor? starts_k, "
    "Tensor? lengths_k, Tensor? slopes, int max_q, int max_k, int? left, int? right, "
    "bool lower_right, float? scale, str form"
)


def _sums_shape(query: torch.Tensor, starts_q: _Optional, max_q: int, form: str) -> list[int]:
    if form == "packed":
        return [query.shape[1], query.shape[0]]
    batch, length = query.shape[:2]
    if starts_q is not None:
        batch, length = starts_q.shape[0] - 1, max_q
    return [batch, query.shape[-2], length + (-length % 32 if form == "padded" else 0)]


def _meta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: _Optional,
    starts_q: _Optional,
    starts_k: _Optional,
    lengths_k: _Optional,
    slopes: _Optional,
    max_q: int,
    max_k: int,
    left: int | None,
    right: int | None,
    lower_right: bool,
    scale: float | None,
    form: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    sums = torch.float64 if query.dtype == torch.float64 else torch.float32
    shape = _sums_shape(query, starts_q, max_q, form)
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return out, query.new_empty(shape, dtype=sums)


def _meta_dropout(*inputs: Any) -> tuple[torch.Tensor, ...]:
    return *_meta(*inputs[:-1]), inputs[0].new_empty(2, dtype=torch.int64)


def _meta_backward(*inputs: Any) -> tuple[_Optional, ...]:
    query, key, value, bias = inputs[3:7]
    grads = (torch.empty_like(t) for t in (query, key, value))
    return *grads, torch.empty_like(bias) if inputs[-1] and bias is not None else None


for _schema, _fn in (
    (f"packed_attention({_INPUTS}) -> (Tensor, Tensor)", _meta),
    (
        f"packed_attention_dropout({_INPUTS}, float dropout_p) -> (Tensor, Tensor, Tensor)",
        _meta_dropout,
    ),
    (
        f"packed_attention_backward(Tensor grad_out, Tensor out, Tensor logsumexp, {_INPUTS}, "
        "float dropout_p, Tensor? halves, bool wants_bias) -> (Tensor, Tensor, Tensor, Tensor)",
        _meta_backward,
    ),
):
    _library.define(_schema)
    _library.impl(_schema.partition("(")[0], _fn, "CompositeExplicitAutograd")


def _derived(name: str) -> Any:
    from torchtpu.eager import dispatch

    return dispatch.derived[f"torchtpu::{name}"]


@cache
def _no_key() -> torch.Tensor:
    """What stands for the random key without dropout."""
    return torch.zeros(2, dtype=torch.int64).to("tpu")


def forward(inputs: tuple[Any, ...], dropout_p: float) -> tuple[torch.Tensor, ...]:
    """The result, the log-sum-exp and the random key."""
    if dropout_p:
        made: tuple[torch.Tensor, ...] = _derived("packed_attention_dropout")(*inputs, dropout_p)
        return made
    return *_derived("packed_attention")(*inputs), _no_key()


def backward(
    saved: tuple[Any, ...], inputs: tuple[Any, ...], dropout_p: float, halves: Any, wants_bias: bool
) -> Any:
    key = halves if dropout_p else None
    return _derived("packed_attention_backward")(*saved, *inputs, dropout_p, key, wants_bias)
