"""The HBM account."""

from __future__ import annotations

import pytest

from torchtpu.sim.memory import HbmAccount, OutOfHBM

GIB = 2**30


def account(enforce: bool = True) -> HbmAccount:
    return HbmAccount(capacity_bytes=16 * GIB, chip="v5e", enforce=enforce)


def test_peak_and_counts() -> None:
    hbm = account()
    hbm.allocate(3 * GIB)
    hbm.allocate(2 * GIB)
    hbm.free(3 * GIB)
    hbm.allocate(GIB)
    assert (hbm.in_use_bytes, hbm.peak_bytes) == (3 * GIB, 5 * GIB)
    assert (hbm.allocations, hbm.live_allocations) == (3, 2)
    hbm.reset_peak()
    assert hbm.peak_bytes == 3 * GIB


def test_out_of_hbm_says_how_much_and_leaves_the_account_usable() -> None:
    hbm = account()
    hbm.allocate(15 * GIB)
    with pytest.raises(OutOfHBM, match=r"v5e.*requested 2.00 GiB.*1.00 GiB missing") as caught:
        hbm.allocate(2 * GIB)
    assert caught.value.requested_bytes == 2 * GIB
    assert caught.value.in_use_bytes == 15 * GIB
    hbm.allocate(GIB)
    assert hbm.in_use_bytes == hbm.capacity_bytes


def test_without_enforcement_it_only_counts() -> None:
    hbm = account(enforce=False)
    hbm.allocate(100 * GIB)
    assert hbm.peak_bytes == 100 * GIB


def test_freeing_more_than_is_in_use_is_loud() -> None:
    hbm = account()
    with pytest.raises(ValueError, match="cannot free"):
        hbm.free(1)
    with pytest.raises(ValueError, match="not negative"):
        hbm.allocate(-1)


def test_what_is_needed_for_a_moment_raises_the_peak_alone() -> None:
    hbm = account()
    hbm.allocate(GIB)
    hbm.require(4 * GIB)
    assert (hbm.in_use_bytes, hbm.peak_bytes, hbm.allocations) == (GIB, 5 * GIB, 1)
    with pytest.raises(OutOfHBM, match=r"in use 3.00 GiB .*\nwhat it is for") as caught:
        hbm.require(14 * GIB, lambda: ["what it is for"], held_bytes=2 * GIB)
    assert caught.value.details == ("what it is for",)
    assert hbm.peak_bytes == 5 * GIB


def test_up_to_the_peak_a_caller_may_count_by_itself() -> None:
    hbm = account()
    hbm.allocate(2 * GIB)
    hbm.free(GIB)
    assert hbm.quiet_bytes == 2 * GIB
    hbm.reset_peak()
    assert hbm.quiet_bytes == GIB
    with hbm.suspended():
        hbm.allocate(100 * GIB)
        hbm.free(100 * GIB)
    assert (hbm.peak_bytes, hbm.quiet_bytes) == (GIB, GIB)
