"""Programs: numbering of values, names, and lowering to StableHLO."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from torchtpu import executor
from torchtpu.program import ArrayType, Node, Program, Ref

F32 = ArrayType((2, 3), np.dtype(np.float32))


def _double(x: Any) -> Any:
    return x * 2


def _split(x: Any) -> tuple[Any, Any]:
    return x[:1], x[1:]


def _total(parts: tuple[Any, ...], scale: int) -> Any:
    return jnp.concatenate(parts).sum() * scale


PROGRAM = Program(
    inputs=(F32,),
    nodes=(
        Node("aten::mul.Tensor", _double, (Ref(0),), (), 1),  # value 1
        Node("aten::split.Tensor", _split, (Ref(1),), (), 2),  # values 2 and 3
        Node("aten::sum", _total, ((Ref(3), Ref(2)),), (("scale", 10),), 1),  # value 4
    ),
    outputs=(4, 1),
)


def test_values_are_inputs_then_node_outputs() -> None:
    total, doubled = PROGRAM(jnp.ones((2, 3)))
    assert float(total) == 120
    assert doubled.tolist() == [[2.0] * 3] * 2


def test_name_lists_the_ops_without_views() -> None:
    assert PROGRAM.name == "mul_Tensor+split_Tensor+sum"


def test_equal_text_is_an_equal_key() -> None:
    again = Program(PROGRAM.inputs, PROGRAM.nodes, PROGRAM.outputs)
    other = Program(PROGRAM.inputs, PROGRAM.nodes, (1,))
    assert hash(again) == hash(PROGRAM)
    assert again == PROGRAM
    assert other != PROGRAM


def test_lowering_gives_types_and_keeps_64_bits() -> None:
    wide = Program(
        (ArrayType((4,), np.dtype(np.int64)),), (Node("x", _double, (Ref(0),), (), 1),), (1,), (0,)
    )
    module, outputs = executor.lower(wide, "cpu")
    assert outputs == [ArrayType((4,), np.dtype(np.int64))]
    text = str(module)
    assert "tensor<4xi64>" in text
    assert "tf.aliasing_output" in text  # the donated input
