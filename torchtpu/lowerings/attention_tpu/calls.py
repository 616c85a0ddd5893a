"""The Pallas calls: which blocks of which operand a grid step holds, and how a call is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from torchtpu.lowerings.attention_tpu import tiles
from torchtpu.lowerings.attention_tpu.cost import Cost, metadata
from torchtpu.lowerings.attention_tpu.sizes import Sizes, Tiling

Array = Any
Operands = tuple[list[Array], list[pl.BlockSpec]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a kernel's code depends on."""

    of: Sizes
    cut: Tiling
    precision: lax.Precision


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Arrays of the shapes that Sizes names; bias: float, added to scores; scale: float32 []."""

    query: Array
    key: Array
    value: Array
    bias: Array | None
    scale: Array


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """The gradient [B, H, S, E] of a result, and float32 [B, H, 1, S] of it.

    lse: log-sum-exp of the scores in base 2, inf for a row without any. inner: of grad and result.
    """

    grad: Array
    lse: Array
    inner: Array

    def padded(self, cut: Tiling) -> Slopes:
        """Give rows that only fill the last stream statistics by which they weigh nothing."""
        missing = ((0, 0), (0, 0), (0, 0), (0, cut.streams * cut.stream - cut.streamed))
        if not cut.is_ragged:
            return self
        lse = jnp.pad(self.lse, missing, constant_values=jnp.inf)
        return Slopes(grad=self.grad, lse=lse, inner=jnp.pad(self.inner, missing))


def held(block: int, width: int) -> pl.BlockSpec:
    """Blocks of the side that a kernel holds, in a grid (batch, head, block, ...)."""
    return pl.BlockSpec((1, 1, block, width), lambda batch, head, at, *_: (batch, head, at, 0))


def statistic(block: int) -> pl.BlockSpec:
    """Blocks of one number per row, [B, H, 1, S], in the same grid."""
    return pl.BlockSpec((1, 1, 1, block), lambda batch, head, at, *_: (batch, head, 0, at))


def over_columns(of: Sizes, cut: Tiling, inputs: Inputs) -> Operands:
    """Operands of a kernel that holds rows: scale, query, key, value and the bias where there is.

    Streams that no row of the block sees keep the index of the last that one does: no copy.
    """

    def stream(block: Array, at: Array) -> Array:
        if not of.causal:
            return at
        return lax.min(at, _div((block + 1) * cut.block - 1, cut.stream))

    def column(batch: Array, head: Array, block: Array, at: Array) -> tuple[Any, ...]:
        return batch, _div(head, of.group), stream(block, at), 0

    def both(batch: Array, head: Array, block: Array, at: Array) -> tuple[Any, ...]:
        return *_shared(of, batch, head), _or_0(of, block), stream(block, at)

    operands = [_scale(inputs), inputs.query, inputs.key, inputs.value]
    specs = [
        pl.BlockSpec(memory_space=pltpu.SMEM),
        held(cut.block, of.width),
        pl.BlockSpec((1, 1, cut.stream, of.width), column),
        pl.BlockSpec((1, 1, cut.stream, of.value_width), column),
    ]
    if of.bias is not None:
        operands.append(inputs.bias)
        rows = cut.block if of.bias[2] > 1 else 1
        specs.append(pl.BlockSpec((1, 1, rows, cut.stream), both))
    return operands, specs


def over_rows(of: Sizes, cut: Tiling, inputs: Inputs, given: Slopes) -> Operands:
    """Operands of the kernel that holds columns, in a grid (batch, key head, block, query, stream).

    They are scale, query, key, value, the slopes, and the bias turned over to [.., T, S].
    """

    def stream(block: Array, at: Array) -> Array:
        if not of.causal:
            return at
        first = lax.min(_div(block * cut.block, cut.stream), np.int32(cut.streams - 1))
        return lax.max(at, first)

    def row(batch: Array, head: Array, block: Array, query: Array, at: Array) -> tuple[Any, ...]:
        return batch, head * of.group + query, stream(block, at), 0

    def one(batch: Array, head: Array, block: Array, query: Array, at: Array) -> tuple[Any, ...]:
        return batch, head * of.group + query, 0, stream(block, at)

    def both(batch: Array, head: Array, block: Array, query: Array, at: Array) -> tuple[Any, ...]:
        shared = _shared(of, batch, head * of.group + query)
        return *shared, block, _or_0(of, stream(block, at))

    operands = [_scale(inputs), inputs.query, inputs.key, inputs.value]
    specs = [
        pl.BlockSpec(memory_space=pltpu.SMEM),
        pl.BlockSpec((1, 1, cut.stream, of.width), row),
        held(cut.block, of.width),
        held(cut.block, of.value_width),
        pl.BlockSpec((1, 1, cut.stream, of.value_width), row),
        pl.BlockSpec((1, 1, 1, cut.stream), one),
        pl.BlockSpec((1, 1, 1, cut.stream), one),
    ]
    operands += [given.grad, given.lse, given.inner]
    if of.bias is not None and inputs.bias is not None:
        operands.append(jnp.swapaxes(inputs.bias, 2, 3))
        rows = cut.stream if of.bias[2] > 1 else 1
        specs.append(pl.BlockSpec((1, 1, cut.block, rows), both))
    return operands, specs


def _scale(inputs: Inputs) -> Array:
    return jnp.reshape(tiles.in_base_2(inputs.scale), (1,))


def _shared(of: Sizes, batch: Array, head: Array) -> tuple[Any, Any]:
    """Places of a bias along the dims that it may have but once."""
    assert of.bias is not None
    return batch if of.bias[0] > 1 else 0, head if of.bias[1] > 1 else 0


def _or_0(of: Sizes, place: Array) -> Any:
    assert of.bias is not None
    return place if of.bias[2] > 1 else 0


def _div(value: Array, by: int) -> Array:
    return value if by == 1 else lax.div(value, np.int32(by))


def call(
    kernel: Callable[..., None],
    *,
    name: str,
    cut: Tiling,
    grid: tuple[int, ...],
    sequential: int,
    in_specs: Sequence[pl.BlockSpec],
    out_specs: Any,
    out_shape: Any,
    scratch: Sequence[tuple[int, ...]],
    cost: Cost,
) -> Callable[..., Any]:
    """A Pallas call under a name, with its cost.

    sequential: how many of the grid's last dims sum up. scratch: shapes of float32 in VMEM.
    """
    order: Any = ("parallel",) * (len(grid) - sequential) + ("arbitrary",) * sequential
    called: Callable[..., Any] = pl.pallas_call(
        kernel,
        name=name,
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=out_shape,
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        compiler_params=pltpu.CompilerParams(dimension_semantics=order),
        cost_estimate=pl.CostEstimate(
            flops=cost.flops,
            transcendentals=cost.transcendentals,
            bytes_accessed=cost.bytes_accessed,
        ),
        metadata=metadata(cost, cut, grid),
    )
    return called
