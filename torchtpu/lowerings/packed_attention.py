"""Attention of sequences that are packed into one, seen through windows: the flash interface.

Queries, keys and values are [B, S, H, D], or [N, H, D] with the places where sequences start.
Packed ones are spread to [B, longest, H, D] for the products, and gathered again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings import attention as dense
from torchtpu.lowerings import random
from torchtpu.lowerings.registry import Array, lowering

_DROPOUT = {"dropout_p": (0,)}


@dataclass(frozen=True, kw_only=True)
class _Spread:
    """Where the rows of B sequences lie in a packed tensor; `starts` is [B + 1]."""

    starts: Array | None
    longest: int

    def apart(self, x: Array) -> Array:
        """[N, ...] -> [B, longest, ...]; the rest of a row that is shorter is others' rows."""
        if self.starts is None:
            return x
        place = self.starts[:-1, None] + jnp.arange(self.longest)
        return jnp.take(x, jnp.clip(place, 0, max(x.shape[0] - 1, 0)), axis=0)

    def together(self, x: Array, count: int) -> Array:
        """[B, longest, ...] -> [N, ...]; rows of no sequence are 0."""
        if self.starts is None:
            return x
        row = jnp.arange(count)
        batch = jnp.searchsorted(self.starts, row, side="right") - 1
        inside = (batch >= 0) & (batch < x.shape[0])
        batch = jnp.clip(batch, 0, x.shape[0] - 1)
        step = row - jnp.take(self.starts, batch)
        inside &= step < self.longest
        found = x[batch, jnp.clip(step, 0, self.longest - 1)]
        return jnp.where(inside.reshape(-1, *(1,) * (found.ndim - 1)), found, 0)

    def lengths(self) -> Array | None:
        """[B], where sequences are packed."""
        return None if self.starts is None else jnp.diff(self.starts)


@dataclass(frozen=True, kw_only=True)
class _Packed:
    """The inputs spread apart, and what a query sees."""

    rows: _Spread
    columns: _Spread
    heads: dense.Heads
    row_lengths: Array | None

    @classmethod
    def of(
        cls,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None,
        starts: tuple[Array | None, Array | None],
        lengths_k: Array | None,
        slopes: Array | None,
        longest: tuple[int, int],
        window: tuple[int | None, int | None],
        lower_right: bool,
        scale: Array | None,
    ) -> _Packed:
        """Spread the inputs, and join bias, slopes, lengths and window to one bias."""
        rows, columns = (_Spread(starts=s, longest=n) for s, n in zip(starts, longest, strict=True))
        apart = (rows.apart(query), columns.apart(key), columns.apart(value))
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in apart)
        lengths = (rows.lengths(), columns.lengths() if lengths_k is None else lengths_k)
        seen = _seen(lengths, (q.shape[2], k.shape[2]), window, lower_right, slopes)
        joined = _joined(bias, *seen)
        heads = dense.Heads.of(q, k, v, joined, False, scale)
        return cls(rows=rows, columns=columns, heads=heads, row_lengths=lengths[0])

    def flat(self, x: Array, count: int) -> Array:
        """[B, H, S, D] -> the layout of the queries."""
        return self.rows.together(jnp.swapaxes(x, 1, 2), count)


def _seen(
    lengths: tuple[Array | None, Array | None],
    shape: tuple[int, int],
    window: tuple[int | None, int | None],
    lower_right: bool,
    slopes: Array | None,
) -> tuple[Array | None, Array | None]:
    """Which keys a query sees, and the linear bias of slopes [H] or [B, H], as [B, H, S, T]."""
    row = lax.broadcasted_iota(jnp.int32, shape, 0)[None, None]
    column = lax.broadcasted_iota(jnp.int32, shape, 1)[None, None]
    ends = [
        jnp.asarray(n, jnp.int32).reshape(-1, 1, 1, 1)
        for n in (s if n is None else n for n, s in zip(lengths, shape, strict=True))
    ]
    place = row + (ends[1] - ends[0] if lower_right else 0)  # the key beside the query
    conditions: list[Array] = [column < ends[1]] if lengths[1] is not None else []
    left, right = window
    conditions += [] if left is None else [column >= place - left]
    conditions += [] if right is None else [column <= place + right]
    seen = reduce(and_, conditions) if conditions else None
    if slopes is None:
        return seen, None
    slopes = slopes.reshape(-1, slopes.shape[-1], 1, 1)
    return seen, -slopes * jnp.abs(column - place)


def _joined(bias: Array | None, seen: Array | None, slope: Array | None) -> Array | None:
    total = bias if slope is None or bias is None else bias + slope
    total = slope if total is None else total
    if total is None or seen is None:
        return seen if total is None else total
    if total.dtype == bool:
        return total & seen
    return jnp.where(seen, total, -jnp.inf)


def _as_sums(lse: Array, packed: _Packed, form: str, count: int) -> Array:
    """[B, H, S] in the form of an interface: "packed" [H, N], "padded" to 32 rows, or "rows"."""
    if form == "packed":
        return packed.rows.together(jnp.swapaxes(lse, 1, 2), count).T
    if form == "padded":
        pad = -lse.shape[2] % 32
        return jnp.pad(lse, ((0, 0), (0, 0), (0, pad)), constant_values=jnp.inf)
    return lse


def _from_sums(lse: Array, packed: _Packed, form: str) -> Array:
    if form == "packed":
        return jnp.swapaxes(packed.rows.apart(lse.T), 1, 2)
    length = packed.heads.query.shape[3]
    return lse[..., :length]


@lowering("torchtpu::packed_attention")
def packed_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    starts_q: Array | None,
    starts_k: Array | None,
    lengths_k: Array | None,
    slopes: Array | None,
    max_q: int,
    max_k: int,
    left: int | None,
    right: int | None,
    lower_right: bool,
    scale: Array | None,
    form: str,
) -> tuple[Array, Array]:
    """The result in the layout of the queries, and the log-sum-exp in a form."""
    packed = _Packed.of(
        query,
        key,
        value,
        bias,
        (starts_q, starts_k),
        lengths_k,
        slopes,
        (max_q, max_k),
        (left, right),
        lower_right,
        scale,
    )
    out, lse = dense.forward(packed.heads, None)
    return packed.flat(out, query.shape[0]), _as_sums(lse, packed, form, query.shape[0])


@lowering("torchtpu::packed_attention_dropout", key=True)
def packed_attention_dropout(
    bits: Array,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    starts_q: Array | None,
    starts_k: Array | None,
    lengths_k: Array | None,
    slopes: Array | None,
    max_q: int,
    max_k: int,
    left: int | None,
    right: int | None,
    lower_right: bool,
    scale: Array | None,
    form: str,
    dropout_p: Array,
) -> tuple[Array, Array, Array]:
    """packed_attention with dropout of the probabilities, and the random key as int64[2]."""
    packed = _Packed.of(
        query,
        key,
        value,
        bias,
        (starts_q, starts_k),
        lengths_k,
        slopes,
        (max_q, max_k),
        (left, right),
        lower_right,
        scale,
    )
    out, lse = dense.forward(packed.heads, dense.kept(bits, packed.heads, dropout_p))
    sums = _as_sums(lse, packed, form, query.shape[0])
    halves = lax.bitcast_convert_type(bits.reshape(2, 2), jnp.int64)
    return packed.flat(out, query.shape[0]), sums, halves


@lowering("torchtpu::packed_attention_backward", constants=_DROPOUT)
def packed_attention_backward(
    grad_out: Array,
    out: Array,
    logsumexp: Array,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    starts_q: Array | None,
    starts_k: Array | None,
    lengths_k: Array | None,
    slopes: Array | None,
    max_q: int,
    max_k: int,
    left: int | None,
    right: int | None,
    lower_right: bool,
    scale: Array | None,
    form: str,
    dropout_p: Array | float,
    halves: Array | None,
    wants_bias: bool,
) -> tuple[Array | None, ...]:
    """Gradients of query, key, value and bias."""
    packed = _Packed.of(
        query,
        key,
        value,
        bias,
        (starts_q, starts_k),
        lengths_k,
        slopes,
        (max_q, max_k),
        (left, right),
        lower_right,
        scale,
    )
    heads = packed.heads
    grad, result = (jnp.swapaxes(packed.rows.apart(x), 1, 2) for x in (grad_out, out))
    if packed.row_lengths is not None:  # the rest of a row is another's
        mine = jnp.arange(grad.shape[2])[None, :] < packed.row_lengths[:, None]
        grad = jnp.where(mine[:, None, :, None], grad, 0)
    keep = None
    if halves is not None:
        keep = dense.kept(dense.bits_of(halves[0], halves[1]), heads, dropout_p)
    lse = _from_sums(logsumexp, packed, form)
    (of_query, of_key, of_value), scores = dense.backward(heads, grad, result, lse, keep)
    of_query = of_query.reshape(*grad.shape[:3], -1)
    return (
        packed.flat(of_query, query.shape[0]),
        packed.columns.together(jnp.swapaxes(of_key, 1, 2), key.shape[0]),
        packed.columns.together(jnp.swapaxes(of_value, 1, 2), key.shape[0]),
        _of_bias(scores, bias) if wants_bias else None,
    )


def _of_bias(scores: Array, bias: Array | None) -> Array | None:
    """Sum [B, H, G, S, T] over the dims along which the bias was broadcast."""
    if bias is None:
        return None
    grad = scores.reshape(scores.shape[0], -1, *scores.shape[3:])
    shape = (1,) * (4 - bias.ndim) + bias.shape
    over = tuple(d for d in range(4) if shape[d] == 1 != grad.shape[d])
    return jnp.sum(grad, over, keepdims=True).reshape(bias.shape)


@lowering("aten::_fill_mem_eff_dropout_mask_", numbers={"seed", "offset"})
def fill_dropout_mask(self: Array, dropout_p: Array, seed: Array, offset: Array) -> Array:
    """What an attention with this random key compares with dropout_p: at or above it is kept."""
    halves = (jnp.asarray(v).astype(jnp.int64) for v in (seed, offset))
    return random.unit(dense.bits_of(*halves), self.shape, jnp.float32)
