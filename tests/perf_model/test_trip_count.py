"""Trip counts of loops written in every direction."""

from __future__ import annotations

import pytest

from torchtpu.perf_model.program import Graph, GraphBuilder
from torchtpu.perf_model.trip_count import trip_count


def condition(direction: str, limit: int, *, flipped: bool = False) -> Graph:
    builder = GraphBuilder()
    counter = builder.input((), "i32")
    constant = builder.op("constant", (), (), "i32", value=limit)
    pair = (constant, counter) if flipped else (counter, constant)
    return builder.build((builder.op("compare", pair, (), "i1", comparison_direction=direction),))


def body(step: int, opcode: str = "add") -> Graph:
    builder = GraphBuilder()
    counter = builder.input((), "i32")
    constant = builder.op("constant", (), (), "i32", value=step)
    return builder.build((builder.op(opcode, (counter, constant), (), "i32"),))


@pytest.mark.parametrize(
    ("start", "direction", "limit", "step", "expected"),
    [
        (0, "LT", 10, 3, 4),
        (0, "LE", 9, 3, 4),
        (5, "LT", 5, 1, 0),
        (10, "GT", 0, -4, 3),
        (10, "GE", 0, -5, 3),
        (0, "NE", 8, 2, 4),
        (0, "LT", 10, -1, None),
        (0, "LT", 10, 0, None),
    ],
)
def test_counts_agree_with_running_the_loop(
    start: int, direction: str, limit: int, step: int, expected: int | None
) -> None:
    assert trip_count((condition(direction, limit), body(step)), [start]) == expected


def test_subtraction_and_a_flipped_comparison() -> None:
    loop = (condition("LT", 0, flipped=True), body(2, "subtract"))
    assert trip_count(loop, [10]) == 5


def test_an_unknown_start_has_no_count() -> None:
    assert trip_count((condition("LT", 10), body(1)), [None]) is None
