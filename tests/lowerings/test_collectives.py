"""Collectives in StableHLO: groups that part the world, and the op of each kind."""

from __future__ import annotations

import numpy as np
import pytest

from torchtpu import executor
from torchtpu.lowerings import collectives, table
from torchtpu.perf_model import stablehlo
from torchtpu.perf_model.program import Op
from torchtpu.program import ArrayType, Node, Program, Ref


@pytest.mark.parametrize(
    ("group", "wanted"),
    [
        ((0, 1, 2, 3), ((0, 1, 2, 3), (4, 5, 6, 7))),
        ((1, 5), ((0, 4), (1, 5), (2, 6), (3, 7))),
        ((2, 3, 6, 7), ((0, 1, 4, 5), (2, 3, 6, 7))),
        (tuple(range(8)), (tuple(range(8)),)),
    ],
)
def test_groups_are_translations(
    group: tuple[int, ...], wanted: tuple[tuple[int, ...], ...]
) -> None:
    assert collectives.parted(group, 8) == wanted


def test_a_group_that_parts_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="translations part 8 devices"):
        collectives.parted((0, 1, 3), 8)


def lowered(name: str, *options: object, shape: tuple[int, ...] = (16,)) -> list[Op]:
    """The ops of a collective's program on float32."""
    row = table()[f"torchtpu::{name}"]
    node = Node(row.name, row.fn, (Ref(0), *options), (), 1)
    program = Program((ArrayType(shape, np.dtype(np.float32)),), (node,), (1,))
    module, _ = executor.lower(program, "tpu")
    return list(stablehlo.read(module).ops)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("all_reduce", ("sum", (0, 2), 4)),
        ("reduce_scatter", ("max", (0, 2), 4)),
        ("all_gather", ((0, 2), 4)),
        ("all_to_all", ((0, 2), 4)),
    ],
)
def test_a_collective_is_one_op_with_its_group(name: str, options: tuple[object, ...]) -> None:
    (op,) = lowered(name, *options)
    assert op.opcode == name
    assert op.ints("group") == (0, 2)
    assert op.int("groups", 0) == 2


def test_an_average_divides_by_the_members() -> None:
    assert next(op.opcode for op in lowered("all_reduce", "avg", (0, 1), 2)) == "all_reduce"
    assert "divide" in [op.opcode for op in lowered("all_reduce", "avg", (0, 1), 2)]


def test_a_permute_keeps_its_pairs() -> None:
    (op,) = lowered("permute", (0, 1, 1, 0), 2)
    assert (op.opcode, op.ints("pairs")) == ("collective_permute", (0, 1, 1, 0))
