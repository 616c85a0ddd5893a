"""Bytes with the padding of tiles, as libtpu 0.0.42 has them for v5e."""

from __future__ import annotations

import pytest

from torchtpu.perf_model.program import TensorType
from torchtpu.perf_model.tiling import padded_bytes


@pytest.mark.parametrize(
    ("shape", "dtype", "size_bytes"),
    [
        ((4096, 4096), "bf16", 2 * 4096 * 4096),
        ((1024, 3), "f32", 4 * 1024 * 4),  # the long dimension along the lanes
        ((1024, 8), "f32", 4 * 1024 * 8),
        ((100, 100), "f32", 4 * 104 * 128),
        ((64, 3, 7, 7), "f32", 4 * 3 * 7 * 8 * 128),
        ((1000,), "f32", 4000),
        ((), "f32", 4),
        ((0, 5), "f32", 0),
    ],
)
def test_a_tensor_takes_whole_tiles(shape: tuple[int, ...], dtype: str, size_bytes: int) -> None:
    assert padded_bytes(TensorType(shape=shape, dtype=dtype)) == size_bytes
