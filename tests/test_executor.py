"""The executor: one compile for one program, on the target that the configuration names."""

from __future__ import annotations

import numpy as np
import pytest

from tests.test_program import PROGRAM
from torchtpu import targets
from torchtpu.executor import Executor


@pytest.fixture(scope="module")
def cpu() -> Executor:
    return Executor(targets.create("cpu"))


def test_a_program_compiles_once(cpu: Executor) -> None:
    first = cpu.executable(PROGRAM)
    assert cpu.executable(PROGRAM) is first
    assert (cpu.cache.stats.compilations, cpu.cache.stats.hits) == (1, 1)
    assert cpu.cache.stats.per_program == {"mul_Tensor+split_Tensor+sum": 1}


def test_a_program_runs(cpu: Executor) -> None:
    argument = cpu.target.put(np.full((2, 3), 0.5, np.float32))
    total, doubled = cpu.executable(PROGRAM).run([argument])
    assert cpu.target.get(total) == 60
    np.testing.assert_array_equal(cpu.target.get(doubled), np.ones((2, 3)))
