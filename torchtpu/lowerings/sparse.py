"""Index lists of sparse tensors: row numbers to row starts and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering


@lowering("aten::_convert_indices_from_coo_to_csr")
def coo_to_csr(self: Array, size: int, out_int32: bool = False) -> Array:
    """[nnz] row numbers in order -> [size + 1]: how many entries lie before each row."""
    dtype = jnp.int32 if out_int32 else jnp.int64
    often = jnp.zeros(size + 1, dtype).at[self + 1].add(1, mode="drop")
    return jnp.cumsum(often, dtype=dtype)


def row_of_entry(starts: Array, count: int) -> Array:
    """[..., rows + 1] starts -> [..., count]: the row that each entry belongs to."""
    if starts.ndim > 1:
        return jax.vmap(lambda row: row_of_entry(row, count))(starts)
    marks = jnp.zeros(count + 1, jnp.int32).at[starts[1:]].add(1, mode="drop")
    return jnp.cumsum(marks, dtype=jnp.int32)[:count]


@lowering("aten::_convert_indices_from_csr_to_coo")
def csr_to_coo(
    crow_indices: Array, col_indices: Array, out_int32: bool = False, transpose: bool = False
) -> Array:
    """[*, rows + 1], [*, nnz] -> [batch dims + 2, all entries]: batch numbers, rows, columns."""
    dtype = jnp.int32 if out_int32 else jnp.int64
    row = row_of_entry(crow_indices, col_indices.shape[-1]).reshape(col_indices.shape)
    batch = [lax.broadcasted_iota(dtype, col_indices.shape, d) for d in range(col_indices.ndim - 1)]
    pair = [col_indices, row] if transpose else [row, col_indices]
    return jnp.stack([part.astype(dtype).reshape(-1) for part in (*batch, *pair)])
