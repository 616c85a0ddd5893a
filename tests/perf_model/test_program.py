"""Types, provenance and the builder of the program form."""

from __future__ import annotations

import pytest

from torchtpu.perf_model.program import (
    GraphBuilder,
    ProgramError,
    Provenance,
    TensorType,
    dtype_bits,
)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("bf16", 16),
        ("f32", 32),
        ("i1", 8),
        ("ui8", 8),
        ("i4", 4),
        ("f8E4M3FN", 8),
        ("f4E2M1FN", 4),
        ("complex<f32>", 64),
        ("token", 0),
    ],
)
def test_dtype_bits(dtype: str, bits: int) -> None:
    assert dtype_bits(dtype) == bits


def test_unknown_dtype_is_an_error() -> None:
    with pytest.raises(ProgramError, match="quaternion"):
        dtype_bits("quaternion")


def test_size_rounds_up_to_bytes() -> None:
    assert TensorType(shape=(3,), dtype="i4").size_bytes == 2
    assert TensorType(shape=(2, 3), dtype="bf16").size_bytes == 12
    assert TensorType(shape=(0, 3), dtype="bf16").size_bytes == 0


def test_provenance_survives_a_location() -> None:
    where = Provenance(op="aten::mm", module="model.layers.3.mlp", source="a|b.py:31")
    assert Provenance.from_location(where.to_location()) == where
    assert Provenance.from_location("jit(f)/mul") is None


def test_builder_counts_nested_ops_once() -> None:
    builder = GraphBuilder()
    x = builder.input((4,), "f32")
    graph = builder.build((builder.op("add", (x, x), (4,), "f32"),))
    assert graph.op_count == 1
    assert graph.type_of(graph.outputs[0]) == TensorType(shape=(4,), dtype="f32")
