"""The forward kernel: softmax(scale Q K^T + bias) V by the online softmax of FlashAttention-2.

Dao 2023, algorithm 1: a block of rows stays in VMEM with the running maximum and sum of its
scores, while the columns stream by; the S x T scores never reach HBM.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from torchtpu.lowerings.attention_tpu import calls, cost, tiles
from torchtpu.lowerings.attention_tpu.calls import Inputs, Plan
from torchtpu.lowerings.attention_tpu.sizes import LANES, Sizes, tiling

Array = Any
Ref = Any
NAME = "torchtpu_flash_attention_forward"
_TILES = 3  # scores and weights in float32, weights as the MXU takes them


def forward(inputs: Inputs, of: Sizes, precision: lax.Precision) -> tuple[Array, Array]:
    """Return the result [B, H, S, E] and the log-sum-exp of the scores, float32 [B, H, S].

    A row that sees no column gives 0 and -inf.
    """
    cut = tiling(of, held=of.rows, streamed=of.columns, tiles=_TILES)
    operands, specs = calls.over_columns(of, cut, inputs)
    wide = of.width + of.value_width
    results = [
        jax.ShapeDtypeStruct((of.batch, of.heads, of.rows, of.value_width), inputs.query.dtype),
        jax.ShapeDtypeStruct((of.batch, of.heads, 1, of.rows), jnp.float32),
    ]
    out, lse = calls.call(
        partial(_kernel, Plan(of=of, cut=cut, precision=precision)),
        name=NAME,
        cut=cut,
        grid=(of.batch, of.heads, cut.blocks, cut.streams),
        sequential=1,
        in_specs=specs,
        out_specs=[calls.held(cut.block, of.value_width), calls.statistic(cut.block)],
        out_shape=results,
        scratch=[(cut.block, LANES), (cut.block, LANES), (cut.block, of.value_width)],
        cost=cost.over_columns(of, cut, products=wide, held=wide * of.itemsize + 4),
    )(*operands)
    return out, lse.reshape(of.batch, of.heads, of.rows)


def _kernel(plan: Plan, scale: Ref, query: Ref, key: Ref, value: Ref, *rest: Ref) -> None:
    of, cut, precision = plan.of, plan.cut, plan.precision
    bias, out, lse, top, total, sums = rest if of.bias else (None, *rest)
    row, column = pl.program_id(2) * cut.block, pl.program_id(3) * cut.stream

    @pl.when(pl.program_id(3) == 0)
    def start() -> None:
        top[...] = jnp.full(top.shape, -jnp.inf, jnp.float32)
        total[...] = jnp.zeros(total.shape, jnp.float32)
        sums[...] = jnp.zeros(sums.shape, jnp.float32)

    def step(at: Any, is_edge: bool) -> None:
        here = pl.ds(at, cut.chunk)
        values = value[0, 0, here, :]
        scores = tiles.product(query[0, 0], key[0, 0, here, :], tiles.COLUMNS, precision)
        scores = scores * scale[0]
        if bias is not None:
            scores = scores + tiles.in_base_2(bias[0, 0, :, here])
        if is_edge:
            scores = tiles.masked(scores, of, row, column + at, turned=False)
            if cut.is_ragged:
                values = tiles.existing(values, column + at, of.columns)
        best = jnp.maximum(top[...], jnp.max(scores, axis=1, keepdims=True))
        base = tiles.finite(best)
        weights = jnp.exp2(scores - tiles.lanes(base, cut.chunk))
        decay = jnp.exp2(top[...] - base)
        total[...] = decay * total[...] + tiles.folded(weights)
        added = tiles.product(weights.astype(values.dtype), values, tiles.ROWS, precision)
        sums[...] = tiles.lanes(decay, of.value_width) * sums[...] + added
        top[...] = best

    tiles.over_columns(of, cut, row, column, step)

    @pl.when(pl.program_id(3) == cut.streams - 1)
    def finish() -> None:
        summed = jnp.sum(total[...], axis=1, keepdims=True)
        out[0, 0] = (sums[...] / jnp.where(summed == 0, 1.0, summed)).astype(out.dtype)
        lse[0, 0] = tiles.as_row(tiles.finite(top[...]) * tiles.LN_2 + jnp.log(summed))
