"""New tensors from numbers: constants, ranges, identity matrices and index grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.pointwise import alike
from torchtpu.lowerings.registry import Array, convert, lowering


@lowering("aten::full", compute="output")
def full(size: Sequence[int], fill_value: Array, dtype: Any = None) -> Array:
    """Every element is fill_value."""
    return jnp.broadcast_to(alike(fill_value)[0], tuple(size))


@lowering("aten::_efficientzerotensor")
def zeros(size: Sequence[int], dtype: Any = None) -> Array:
    """Every element is 0."""
    return jnp.zeros(size, bool)


@lowering("torchtpu::arange")
def arange(start: Array, step: Array, length: int, dtype: Any) -> Array:
    """start + i * step for i below length; torch's arange with its length known."""
    wide = jnp.promote_types(dtype, jnp.float32) if np.dtype(dtype).kind not in "iub" else jnp.int64
    start, step = (convert(v, wide) for v in alike(start, step))
    return start + step * lax.iota(wide, length)


@lowering("aten::eye", "aten::eye.m")
def eye(n: int, m: int | None = None, dtype: Any = None) -> Array:
    """1 on the diagonal, 0 elsewhere."""
    return jnp.eye(n, m, dtype=bool)


@lowering(
    "aten::linspace",
    "aten::linspace.Tensor_Tensor",
    "aten::linspace.Tensor_Scalar",
    "aten::linspace.Scalar_Tensor",
)
def linspace(start: Array, end: Array, steps: int, dtype: Any = None) -> Array:
    """steps numbers from start to end, both included; the later half is counted from the end."""
    return spaced(start, end, steps, dtype)


@lowering(
    "aten::logspace",
    "aten::logspace.Tensor_Tensor",
    "aten::logspace.Tensor_Scalar",
    "aten::logspace.Scalar_Tensor",
)
def logspace(start: Array, end: Array, steps: int, base: Array = 10.0, dtype: Any = None) -> Array:
    """base to the powers of linspace."""
    return jnp.power(base, spaced(start, end, steps, dtype))


def spaced(start: Array, end: Array, steps: int, dtype: Any) -> Array:
    """steps numbers from start to end; the later half is counted from the end."""
    kind = np.dtype(dtype or np.float32)
    wide = kind if kind.kind in "fc" and kind.itemsize >= 4 else np.dtype(np.float32)
    start, end = (convert(v, wide) for v in alike(start, end))
    step = (end - start) / max(steps - 1, 1)
    index = lax.iota(np.int32, steps)
    return jnp.where(
        index < steps // 2 + (steps == 1), start + step * index, end - step * (steps - 1 - index)
    )


@lowering("aten::tril_indices")
def tril_indices(row: int, col: int, offset: int = 0, dtype: Any = None) -> Array:
    """Row and column numbers of the lower triangle, row by row."""
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)))


@lowering("aten::triu_indices")
def triu_indices(row: int, col: int, offset: int = 0, dtype: Any = None) -> Array:
    """Row and column numbers of the upper triangle, row by row."""
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)))
