"""Jagged tensors: rows of all sequences behind each other, and the same padded to one length."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering
from torchtpu.lowerings.sparse import row_of_entry


@lowering("torchtpu::jagged_to_padded")
def jagged_to_padded(values: Array, offsets: Array, longest: int, padding: Any) -> Array:
    """[rows, ...] -> [sequences, longest, ...]: sequence i is rows offsets[i] to offsets[i + 1]."""
    row = offsets[:-1, None] + lax.iota(offsets.dtype, longest)  # [sequences, longest]
    inside = row < offsets[1:, None]
    inside = inside.reshape(*inside.shape, *(1,) * (values.ndim - 1))
    padding = jnp.asarray(padding).astype(values.dtype)
    if not values.shape[0]:
        return jnp.full((*row.shape, *values.shape[1:]), padding)
    return jnp.where(inside, values[jnp.minimum(row, values.shape[0] - 1)], padding)


@lowering("torchtpu::padded_to_jagged")
def padded_to_jagged(dense: Array, offsets: Array, rows: int) -> Array:
    """[sequences, longest, ...] -> [rows, ...]: what is no padding; zeros behind the last one."""
    if not dense.size or not rows:
        return jnp.zeros((rows, *dense.shape[2:]), dense.dtype)
    sequence = jnp.minimum(row_of_entry(offsets, rows), dense.shape[0] - 1)
    place = lax.iota(offsets.dtype, rows) - offsets[sequence]
    inside = (place < dense.shape[1]).reshape(-1, *(1,) * (dense.ndim - 2))
    found = dense[sequence, jnp.minimum(place, dense.shape[1] - 1)]
    return jnp.where(inside, found, jnp.zeros((), dense.dtype))
