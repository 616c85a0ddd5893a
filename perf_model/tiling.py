"""Bytes of a tensor as a TPU lays it out: in tiles of 8 x 128 elements, padded to whole ones.

XLA's tiled layout (openxla.org/xla/tiled_layout): one dimension along the 128 lanes, one along the
8 sublanes (4, 2 or 1 where it is that short). The compiler picks the dimensions that pad least:
libtpu 0.0.42 lays float32 [n, 3] out as {0,1:T(4,128)}.
"""

from __future__ import annotations

import functools
import itertools
import math

from torchtpu.perf_model.program import TensorType, dtype_bits

_LANES, _SUBLANES = 128, 8


@functools.cache
def padded_bytes(type_: TensorType) -> int:
    """Bytes of a tensor with the padding of its tiles; of a number or a vector without it."""
    if len(type_.shape) < 2 or not type_.elements:
        return type_.size_bytes
    elements = min(
        _padded(type_.shape, sublanes, lanes)
        for sublanes, lanes in itertools.permutations(range(len(type_.shape)), 2)
    )
    return (elements * dtype_bits(type_.dtype) + 7) // 8


def _padded(shape: tuple[int, ...], sublanes: int, lanes: int) -> int:
    rows = next((n for n in (1, 2, 4) if shape[sublanes] <= n), _SUBLANES)
    rest = math.prod(shape) // (shape[sublanes] * shape[lanes])
    return rest * _up(shape[sublanes], rows) * _up(shape[lanes], _LANES)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
