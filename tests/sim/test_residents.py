"""Arrays in simulated HBM, and memory that was only asked for."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from torchtpu.sim.memory import HbmAccount, OutOfHBM
from torchtpu.sim.observed import AbstractArray
from torchtpu.sim.residents import Residents


class Storage:
    def __init__(self) -> None:
        self.array: Any = None


def array() -> AbstractArray:
    return AbstractArray((100,), np.dtype(np.uint8))


@pytest.fixture
def hbm() -> HbmAccount:
    return HbmAccount(capacity_bytes=1000, chip="v5e")


@pytest.fixture
def residents(hbm: HbmAccount) -> Residents:
    return Residents(hbm)


def test_an_array_counts_once_and_until_it_dies(residents: Residents, hbm: HbmAccount) -> None:
    first, second = array(), array()
    for made in (first, second, first):
        residents.add(made, 100)
    assert (residents.in_use_bytes, residents.allocations) == (200, 2)
    del first, made
    gc.collect()
    assert residents.in_use_bytes == 200 - 100
    residents.drop(second)
    residents.drop(second)
    assert (residents.in_use_bytes, hbm.frees) == (0, 2)
    assert residents.peak_bytes == 200


def test_what_was_dropped_is_not_freed_again_when_it_dies(residents: Residents) -> None:
    taken = array()
    residents.add(taken, 100)
    residents.drop(taken)
    del taken
    gc.collect()
    assert residents.in_use_bytes == 0


def test_memory_asked_for_must_fit_until_something_is_written(residents: Residents) -> None:
    kept = array()
    residents.add(kept, 300)
    asked, other = Storage(), Storage()
    residents.reserve(asked, 600)
    with pytest.raises(OutOfHBM, match="requested 200 B, in use 900 B of 1000 B usable"):
        residents.reserve(other, 200)
    assert residents.in_use_bytes == 900
    assert residents.peak_bytes == 900
    asked.array = "written"
    assert residents.in_use_bytes == 300
    last = Storage()
    residents.reserve(last, 200)
    residents.reserve(last, 100)
    assert residents.in_use_bytes == 400
    del last
    assert residents.in_use_bytes == 300
    residents.reset_peak()
    assert residents.peak_bytes == 300


def test_an_array_that_does_not_fit_is_not_counted(residents: Residents) -> None:
    with pytest.raises(OutOfHBM):
        residents.add(array(), 1001)
    residents.add(array(), 1000)
    assert residents.in_use_bytes == 0
