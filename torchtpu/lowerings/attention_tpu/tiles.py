"""What the kernels share: products on the MXU, masks of a tile, and the loop over its chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from torchtpu.lowerings.attention_tpu.sizes import LANES, Sizes, Tiling

LOG2_E = math.log2(math.e)  # scores are in base 2, the base of the power that the EUP has
LN_2 = math.log(2)
Array = Any

ROWS, COLUMNS = 0, 1  # contracted dims of a product: x y, or x y^T


def product(left: Array, right: Array, dim: int, precision: lax.Precision) -> Array:
    """left [m, n] times right [n, p] (dim 0) or right^T, [p, n] (dim 1) -> float32 [m, p]."""
    dims = (((1,), (dim,)), ((), ()))
    return lax.dot_general(
        left, right, dims, precision=precision, preferred_element_type=jnp.float32
    )


def in_base_2(exponent: Array) -> Array:
    """An exponent of e as one of 2, in float32."""
    return exponent.astype(jnp.float32) * LOG2_E


def lanes(column: Array, width: int) -> Array:
    """[n, 128], equal along its lanes -> [n, width]."""
    times = -(-width // LANES)
    wide = jnp.concatenate([column] * times, axis=1) if times > 1 else column
    return wide[:, :width]


def folded(tile: Array) -> Array:
    """Sum of [n, 128 m] over m -> [n, 128]."""
    parts = [tile[:, at : at + LANES] for at in range(0, tile.shape[1], LANES)]
    return sum(parts[1:], parts[0])


def finite(top: Array) -> Array:
    """A maximum to subtract: that of no column at all is 0."""
    return jnp.where(top == -jnp.inf, 0.0, top)


def as_column(row: Array) -> Array:
    """[1, n] -> [n, 128], equal along its lanes."""
    return jnp.broadcast_to(row, (LANES, row.shape[1])).T


def as_row(column: Array) -> Array:
    """[n, 128], equal along its lanes -> [1, n]."""
    return column.T[:1]


def existing(block: Array, start: Array, length: int) -> Array:
    """Zeros for the positions behind `length` of a block [n, D] that begins at `start`."""
    place = start + lax.broadcasted_iota(jnp.int32, block.shape, 0)
    return jnp.where(place < length, block.astype(jnp.float32), 0.0).astype(block.dtype)


def masked(scores: Array, of: Sizes, row: Array, column: Array, *, turned: bool) -> Array:
    """-inf where a column is not seen, or what is streamed has ended.

    scores: [rows, columns] from (row, column); turned: [columns, rows], the rows streamed.
    """
    rows = row + lax.broadcasted_iota(jnp.int32, scores.shape, int(turned))
    columns = column + lax.broadcasted_iota(jnp.int32, scores.shape, int(not turned))
    seen = rows < of.rows if turned else columns < of.columns
    if of.causal:
        seen &= columns <= rows
    return jnp.where(seen, scores, -jnp.inf)


def over_columns(
    of: Sizes, cut: Tiling, row: Array, column: Array, body: Callable[[Any, bool], None]
) -> None:
    """Call body(start, is_edge) for the chunks of columns, from `column`, that rows see.

    row: the first of the block. is_edge: some columns of the chunk are masked out or missing.
    """
    whole, end = _by_length(cut, column)
    if of.causal:
        whole = lax.min(_i32(whole), _floor(row + 1 - column, cut.chunk))
        end = lax.min(_i32(end), _floor(row + cut.block - 1 - column + cut.chunk, cut.chunk))
        whole = lax.min(whole, end)
    _loop(0, whole, cut, body, False)
    _loop(whole, end, cut, body, True)


def over_rows(
    of: Sizes, cut: Tiling, column: Array, row: Array, body: Callable[[Any, bool], None]
) -> None:
    """Call body(start, is_edge) for the chunks of rows, from `row`, that see a block of columns."""
    whole, end = _by_length(cut, row)
    first: Any = 0
    if of.causal:
        end = _i32(end)
        first = lax.min(end, _floor(column - row, cut.chunk))
        inner = lax.min(end, _floor(column + cut.block - 2 - row + cut.chunk, cut.chunk))
        _loop(first, inner, cut, body, True)
        first, whole = inner, lax.max(inner, _i32(whole))
    _loop(first, whole, cut, body, False)
    _loop(whole, end, cut, body, True)


def _by_length(cut: Tiling, start: Array) -> tuple[Any, Any]:
    """How many chunks from a position exist whole, and how many at least in part."""
    if not cut.is_ragged:
        return cut.chunks, cut.chunks
    left = cut.streamed - start
    whole, end = _floor(left, cut.chunk), _floor(left + cut.chunk - 1, cut.chunk)
    return lax.min(whole, _i32(cut.chunks)), lax.min(end, _i32(cut.chunks))


def _loop(first: Any, end: Any, cut: Tiling, body: Callable[[Any, bool], None], edge: bool) -> None:
    if isinstance(first, int) and isinstance(end, int):
        for chunk in range(first, end):
            body(chunk * cut.chunk, edge)
        return

    def step(chunk: Array, _: None) -> None:
        body(pl.multiple_of(chunk * cut.chunk, cut.chunk), edge)

    lax.fori_loop(_i32(first), _i32(end), step, None)


def _floor(value: Array, by: int) -> Array:
    """max(value, 0) // by: what jnp's floor division of int32 is for no negative number."""
    return lax.div(lax.max(value, _i32(0)), _i32(by))


def _i32(value: Any) -> Any:
    return np.int32(value) if isinstance(value, int) else value
