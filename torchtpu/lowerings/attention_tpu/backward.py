"""The backward kernels: gradients of Q, and of K and V, from the saved log-sum-exp.

Dao 2023, algorithm 2, in two kernels, so that each sums in VMEM: that of Q holds rows and streams
columns, that of K and V holds columns and streams the rows of all heads that share them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from torchtpu.lowerings.attention_tpu import calls, cost, tiles
from torchtpu.lowerings.attention_tpu.calls import Inputs, Plan, Slopes
from torchtpu.lowerings.attention_tpu.sizes import LANES, Sizes, tiling

Array = Any
Ref = Any
NAME_DQ = "torchtpu_flash_attention_backward_dq"
NAME_DKV = "torchtpu_flash_attention_backward_dkv"
_TILES = 5  # weights and slopes in float32, their product, two of them as the MXU takes them


def slopes_of(grad_out: Array, out: Array, logsumexp: Array) -> Slopes:
    """What both kernels need of a result [B, H, S, E], its log-sum-exp and its gradient."""
    inner = jnp.sum(grad_out.astype(jnp.float32) * out.astype(jnp.float32), -1)
    lse = jnp.where(logsumexp == -jnp.inf, jnp.inf, logsumexp)  # weights of a row without any: 0
    return Slopes(grad=grad_out, lse=tiles.in_base_2(lse)[:, :, None], inner=inner[:, :, None])


def query_gradient(inputs: Inputs, given: Slopes, of: Sizes, precision: lax.Precision) -> Array:
    """Return the gradient of the query, in its dtype."""
    cut = tiling(of, held=of.rows, streamed=of.columns, tiles=_TILES)
    operands, specs = calls.over_columns(of, cut, inputs)
    wide = 2 * of.width + of.value_width
    statistic = calls.statistic(cut.block)
    return calls.call(
        partial(_dq_kernel, Plan(of=of, cut=cut, precision=precision)),
        name=NAME_DQ,
        cut=cut,
        grid=(of.batch, of.heads, cut.blocks, cut.streams),
        sequential=1,
        in_specs=[*specs, calls.held(cut.block, of.value_width), statistic, statistic],
        out_specs=calls.held(cut.block, of.width),
        out_shape=jax.ShapeDtypeStruct(inputs.query.shape, inputs.query.dtype),
        scratch=[(cut.block, of.width), (cut.block, LANES), (cut.block, LANES)],
        cost=cost.over_columns(of, cut, products=wide, held=wide * of.itemsize + 8),
    )(*operands, given.grad, given.lse, given.inner)


def _dq_kernel(plan: Plan, scale: Ref, query: Ref, key: Ref, value: Ref, *rest: Ref) -> None:
    of, cut, precision = plan.of, plan.cut, plan.precision
    bias, grad_out, lse, inner, dq, sums, log_sums, inners = rest if of.bias else (None, *rest)
    row, column = pl.program_id(2) * cut.block, pl.program_id(3) * cut.stream

    @pl.when(pl.program_id(3) == 0)
    def start() -> None:
        sums[...] = jnp.zeros(sums.shape, jnp.float32)
        log_sums[...] = tiles.as_column(lse[0, 0])
        inners[...] = tiles.as_column(inner[0, 0])

    def step(at: Any, is_edge: bool) -> None:
        here = pl.ds(at, cut.chunk)
        keys, values = key[0, 0, here, :], value[0, 0, here, :]
        if is_edge and cut.is_ragged:
            keys, values = (tiles.existing(x, column + at, of.columns) for x in (keys, values))
        scores = tiles.product(query[0, 0], keys, tiles.COLUMNS, precision) * scale[0]
        if bias is not None:
            scores = scores + tiles.in_base_2(bias[0, 0, :, here])
        if is_edge:
            scores = tiles.masked(scores, of, row, column + at, turned=False)
        weights = jnp.exp2(scores - tiles.lanes(log_sums[...], cut.chunk))
        slopes = tiles.product(grad_out[0, 0], values, tiles.COLUMNS, precision)
        slopes = weights * (slopes - tiles.lanes(inners[...], cut.chunk))
        sums[...] += tiles.product(slopes.astype(keys.dtype), keys, tiles.ROWS, precision)

    tiles.over_columns(of, cut, row, column, step)

    @pl.when(pl.program_id(3) == cut.streams - 1)
    def finish() -> None:
        dq[0, 0] = (sums[...] * (scale[0] * tiles.LN_2)).astype(dq.dtype)


def key_value_gradients(
    inputs: Inputs, given: Slopes, of: Sizes, precision: lax.Precision
) -> tuple[Array, Array]:
    """Return the gradients of key and value, in their dtypes."""
    cut = tiling(of, held=of.columns, streamed=of.rows, tiles=_TILES)
    operands, specs = calls.over_rows(of, cut, inputs, given.padded(cut))
    dk, dv = calls.call(
        partial(_dkv_kernel, Plan(of=of, cut=cut, precision=precision)),
        name=NAME_DKV,
        cut=cut,
        grid=(of.batch, of.key_heads, cut.blocks, of.group, cut.streams),
        sequential=2,
        in_specs=specs,
        out_specs=[calls.held(cut.block, n) for n in (of.width, of.value_width)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (inputs.key, inputs.value)],
        scratch=[(cut.block, n) for n in (of.width, of.value_width)],
        cost=cost.over_rows(of, cut),
    )(*operands)
    return dk, dv


def _dkv_kernel(plan: Plan, scale: Ref, query: Ref, key: Ref, value: Ref, *rest: Ref) -> None:
    of, cut, precision = plan.of, plan.cut, plan.precision
    grad_out, lse, inner, *rest_ = rest
    bias, dk, dv, key_sums, value_sums = rest_ if of.bias else (None, *rest_)
    column, row = pl.program_id(2) * cut.block, pl.program_id(4) * cut.stream

    @pl.when((pl.program_id(3) == 0) & (pl.program_id(4) == 0))
    def start() -> None:
        key_sums[...] = jnp.zeros(key_sums.shape, jnp.float32)
        value_sums[...] = jnp.zeros(value_sums.shape, jnp.float32)

    def step(at: Any, is_edge: bool) -> None:
        here = pl.ds(at, cut.chunk)
        queries, grads = query[0, 0, here, :], grad_out[0, 0, here, :]
        if is_edge and cut.is_ragged:
            queries, grads = (tiles.existing(x, row + at, of.rows) for x in (queries, grads))
        # Scores stand on their side, [columns, rows]: no product has to turn over a tile of them.
        scores = tiles.product(key[0, 0], queries, tiles.COLUMNS, precision) * scale[0]
        if bias is not None:
            own = bias[0, 0, :, here] if bias.shape[3] > 1 else bias[0, 0]
            scores = scores + tiles.in_base_2(own)
        if is_edge:
            scores = tiles.masked(scores, of, row + at, column, turned=True)
        weights = jnp.exp2(scores - lse[0, 0, :, here])
        value_sums[...] += tiles.product(weights.astype(grads.dtype), grads, tiles.ROWS, precision)
        slopes = tiles.product(value[0, 0], grads, tiles.COLUMNS, precision)
        slopes = weights * (slopes - inner[0, 0, :, here])
        key_sums[...] += tiles.product(slopes.astype(grads.dtype), queries, tiles.ROWS, precision)

    tiles.over_rows(of, cut, column, row, step)

    @pl.when((pl.program_id(3) == of.group - 1) & (pl.program_id(4) == cut.streams - 1))
    def finish() -> None:
        dk[0, 0] = (key_sums[...] * (scale[0] * tiles.LN_2)).astype(dk.dtype)
        dv[0, 0] = value_sums[...].astype(dv.dtype)
