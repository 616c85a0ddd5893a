"""Training spread over processes ends with the parameters of training in one.

TORCHTPU_TEST_ALL=1 trains for 200 steps, and over torch's gloo as well.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests import daily
from tests.distributed import training, world

pytestmark = pytest.mark.timeout(3000 if daily.ALL else 480)  # processes that import and compile

STEPS = 200 if daily.ALL else 6
CLOSE = 1e-5  # float32, absolute, every parameter
TOGETHER = [name for name, (_, size) in training.WAYS.items() if size == 4]


@cache
def _alone() -> training.State:
    return training.alone(STEPS)


def test_parameters_are_those_of_one_process() -> None:
    """DDP, FSDP2, and tensor parallel by FSDP2."""
    for found in world.results(training.by_each, 4, "tpu", STEPS, TOGETHER, patience_s=2500.0):
        for name, state in found.items():
            assert training.difference(state, _alone()) < (CLOSE,), name


def test_parameters_of_a_pipeline_are_those_of_one_process() -> None:
    found = training.spread("pipeline", "tpu", STEPS, patience_s=2500.0)
    assert training.difference(found, _alone()) < (CLOSE,)


@pytest.mark.skipif(not daily.ALL, reason="an hour's part: TORCHTPU_TEST_ALL=1 runs it")
@pytest.mark.parametrize("name", training.WAYS)
def test_over_gloo_the_same_script_gives_the_same(name: str) -> None:
    found = training.spread(name, "cpu", STEPS, patience_s=2500.0)
    assert training.difference(found, _alone()) < (CLOSE,)
