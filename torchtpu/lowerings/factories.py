"""New tensors from numbers: constants, ranges, identity matrices and index grids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.pointwise import alike
from torchtpu.lowerings.registry import Array, convert, lowering, rounded


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
    compute="output",
)
def linspace(start: Array, end: Array, steps: int, dtype: Any = None) -> Array:
    """steps numbers from start to end, both included; the later half is counted from the end."""
    kind = np.dtype(dtype or np.float32)
    half = kind if kind in (jnp.bfloat16, np.float16) else None
    return spaced(start, end, steps, kind, lambda x: rounded(x, half))


@lowering(
    "aten::logspace",
    "aten::logspace.Tensor_Tensor",
    "aten::logspace.Tensor_Scalar",
    "aten::logspace.Scalar_Tensor",
)
def logspace(start: Array, end: Array, steps: int, base: Array = 10.0, dtype: Any = None) -> Array:
    """base to the powers of linspace; a single one is not rounded to dtype before."""
    if steps == 1:
        return jnp.power(base, alike(start)[0]).reshape(1)
    return jnp.power(base, spaced(start, end, steps, np.dtype(dtype or np.float32)))


def spaced(
    start: Array,
    end: Array,
    steps: int,
    dtype: np.dtype[Any],
    between: Callable[[Array], Array] = lambda x: x,
) -> Array:
    """steps numbers between two of dtype, in a type that holds fractions, rounded on the way.

    The later half is counted from the end. `between` is applied to every intermediate result.
    """
    start, end = (convert(v, dtype).astype(_wide(dtype)) for v in alike(start, end))
    difference = end - start
    if dtype.kind not in "iub":
        difference = difference.astype(dtype).astype(start.dtype)
    # XLA would multiply by the reciprocal of a constant.
    count = lax.optimization_barrier(between(jnp.asarray(max(steps - 1, 1), start.dtype)))
    step = between(difference / count)
    index = lax.iota(np.int32, steps)
    first, last = (between(i.astype(start.dtype)) for i in (index, steps - 1 - index))
    return jnp.where(
        index < steps // 2 + (steps == 1),
        start + between(step * first),
        end - between(step * last),
    )


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that torch computes a range of numbers in."""
    if dtype.kind in "iub":
        return np.dtype(np.float64)
    is_half = dtype in (jnp.bfloat16, np.float16)
    return np.dtype(np.float32) if is_half else dtype


@lowering("aten::tril_indices")
def tril_indices(row: int, col: int, offset: int = 0, dtype: Any = None) -> Array:
    """Row and column numbers of the lower triangle, row by row."""
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)))


@lowering("aten::triu_indices")
def triu_indices(row: int, col: int, offset: int = 0, dtype: Any = None) -> Array:
    """Row and column numbers of the upper triangle, row by row."""
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)))
