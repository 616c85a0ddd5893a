"""Training spread over processes ends with the parameters of training in one."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.distributed import training, world

pytestmark = pytest.mark.timeout(480)  # several processes that all import and compile


@cache
def _alone() -> dict[str, torch.Tensor]:
    return training.alone()


def _check(found: dict[str, torch.Tensor]) -> None:
    expected = _alone()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-5), name


def test_parameters_are_those_of_one_process() -> None:
    """DDP, FSDP2, and tensor parallel by FSDP2."""
    for found in world.results(training.by_each, 4, "tpu"):
        for state in found.values():
            _check(state)


def test_parameters_of_a_pipeline_are_those_of_one_process() -> None:
    first, second = world.results(training.by_pipeline, 2, "tpu")
    _check(first | second)
