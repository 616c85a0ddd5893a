"""Training spread over processes ends with the parameters of training in one."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.distributed import training, world


@cache
def _alone() -> dict[str, torch.Tensor]:
    return training.alone()


@pytest.mark.parametrize("way", training.WAYS)
def test_parameters_are_those_of_one_process(way: str) -> None:
    train, size = training.WAYS[way]
    merged = {}
    for state in world.results(train, size, "tpu"):
        merged |= state
    expected = _alone()
    assert merged.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(merged[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
