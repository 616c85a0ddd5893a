"""Random programs, and those that once differed, do on the device what they do on the CPU.

`python -m tests.ops.fuzz` runs as many of them as wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import hypothesis
import pytest
import torch
from hypothesis import strategies

from tests.ops.compared import difference, reduced
from tests.ops.programs import Line, Maker, Program

T = TypeVar("T")
STRICT = torch.tpu.EagerMode.DEFER_NEVER
FUSED = torch.tpu.EagerMode.DEFER_AND_FUSE


@pytest.mark.parametrize("mode", [STRICT, FUSED], ids=["strict", "fused"])
@hypothesis.settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.generate],  # programs are reduced line by line
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(data=strategies.data())
def test_random_programs_equal_cpu(mode: Any, data: strategies.DataObject) -> None:
    def draw(options: Sequence[T]) -> T:
        return options[data.draw(strategies.integers(0, len(options) - 1))]

    program = Maker(draw).make()
    if difference(program, mode):
        small = reduced(program, mode)
        pytest.fail(f"{difference(small, mode)}\n{small.text()}")


# What random programs found, by what was wrong.
FOUND = {
    "the version of a list's tensors": """
        t1 = torch.ones(3, device=device)
        torch._foreach_mul_([t1], 2)
    """,
    "the version of running statistics": """
        t1 = torch.zeros(2, device=device)
        t2 = torch.ones(2, device=device)
        t3 = torch.ones(3, 2, device=device)
        torch.nn.functional.batch_norm(t3, t1, t2, training=True, momentum=0.5)
    """,
    "a write into an expanded tensor without elements": """
        t1 = torch.ones(0, device=device).expand(2, 0)
        t1.div_(t1)
    """,
    "xor of floats": """
        t1 = torch.ones(3, device=device)
        t1 ^ t1
    """,
    "floats into integers by mul_": """
        t1 = torch.ones(3, dtype=torch.uint8, device=device)
        t1 *= 0.5
    """,
    "a matrix product of truth values": """
        t1 = torch.ones(2, 2, dtype=torch.bool, device=device)
        t1.mm(t1)
    """,
    "order of complex numbers": """
        t1 = torch.ones(2, dtype=torch.complex64, device=device)
        t1 < t1
    """,
    "the remainder of complex numbers": """
        t1 = torch.ones(2, dtype=torch.complex64, device=device)
        t1 % t1
    """,
    "relu_ of truth values": """
        t1 = torch.ones(2, dtype=torch.bool, device=device)
        t1.relu_()
    """,
    "subtraction from a truth value": """
        t1 = torch.ones(2, dtype=torch.int64, device=device)
        True - t1
    """,
    "a list of truth values times a number": """
        t1 = torch.ones(2, dtype=torch.bool, device=device)
        torch._foreach_mul_([t1], 2)
    """,
    "infinity times a truth value that is false": """
        t1 = torch.tensor([float("inf"), float("nan"), 2.0], device=device)
        t2 = t1 * torch.tensor([False, False, True], device=device)
    """,
    "relu of minus zero": """
        t1 = torch.tensor([-0.0, float("nan"), 1.0], device=device).relu()
    """,
    "distinct complex numbers": """
        t1 = torch.ones(2, dtype=torch.complex64, device=device)
        t1.unique()
    """,
    "a mask without elements": """
        t1 = torch.ones(0, 3, device=device)
        t2 = t1[t1 > 0]
    """,
    "values of another shape than the indices": """
        t1 = torch.ones(3, device=device)
        t1[[0, -1]] = torch.ones(2, 1, 3, device=device)
    """,
    "strides of nonzero": """
        t1 = torch.tensor([[1, 0], [1, 1]], device=device)
        t2 = t1.nonzero()
    """,
    "a copy between two dense tensors that share a part": """
        t1 = torch.arange(5, device=device)
        t1[1:].copy_(t1[:-1])
    """,
    "an in-place result of another shape": """
        t1 = torch.ones((), dtype=torch.bool, device=device)
        t1.bitwise_and_(torch.ones(2, dtype=torch.bool, device=device))
    """,
    "strides of an out= that is made larger": """
        t1 = torch.ones(2, 3, device=device).mT
        t2 = torch.add(t1, t1, out=torch.empty(0, device=device))
    """,
    "powers of truth values": """
        t1 = torch.ones(2, dtype=torch.bool, device=device)
        t2 = t1.pow(t1)
        t3 = t1.pow(True)
        t4 = torch._foreach_pow([t1], True)[0]
    """,
    "-0.0 at a bound": """
        t1 = torch.tensor([-0.0, float("nan"), 1.0], device=device).clamp(min=0)
    """,
    "strides of two conditions at once": """
        t1 = torch.ones(3, 3, dtype=torch.complex64, device=device).mT.contiguous().mT
        t2 = torch.ones(1, 3, dtype=torch.complex64, device=device).expand(2, 1, 3)
        t3 = t2.logical_and(t1)
    """,
    "two of a number": """
        t1 = torch.ones((), device=device)
        t1.index_select(0, torch.tensor([0, 0], device=device))
    """,
    "cumsum_ of truth values that are none": """
        t1 = torch.ones(0, dtype=torch.bool, device=device)
        t1.cumsum_(0)
    """,
    "cumsum_ of truth values": """
        t1 = torch.ones(3, dtype=torch.bool, device=device)
        t1.cumsum_(0)
    """,
}


@pytest.mark.parametrize("mode", [STRICT, FUSED], ids=["strict", "fused"])
@pytest.mark.parametrize("what", FOUND)
def test_found(what: str, mode: Any) -> None:
    lines = [Line(text.strip()) for text in FOUND[what].strip().splitlines()]
    assert difference(Program(lines), mode) == ""


def test_a_difference_is_reduced_to_the_lines_that_show_it() -> None:
    program = Program(
        [
            Line("t1 = torch.ones(3, device=device)", "t1"),
            Line("t2 = t1 + 1", "t2", ("t1",)),
            Line("t3 = t2 * (2 if device == 'tpu' else 3)", "t3", ("t2",)),
            Line("t4 = t3 + t1", "t4", ("t3", "t1")),
        ]
    )
    assert difference(program, STRICT) == "t3: expected [6.0, 6.0, 6.0], got [4.0, 4.0, 4.0]"
    assert [line.target for line in reduced(program, STRICT).lines] == ["t1", "t2", "t3"]
