"""Simulated time."""

from __future__ import annotations

import pytest

from torchtpu.sim.clock import Clock, to_ps, to_s


def test_picoseconds_round_trip() -> None:
    assert to_ps(1.6e-6) == 1_600_000
    assert to_s(to_ps(0.125)) == 0.125


@pytest.mark.parametrize("duration", [-1e-9, float("nan"), float("inf")])
def test_only_real_durations(duration: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        to_ps(duration)


def test_the_device_starts_when_work_is_enqueued_and_its_queue_is_empty() -> None:
    clock = Clock()
    clock.host_work(10)
    assert clock.enqueue(100) == 110
    clock.host_work(5)
    assert clock.enqueue(20) == 130
    assert clock.host_ps == 15


def test_a_slow_host_leaves_the_device_idle() -> None:
    clock = Clock()
    for _ in range(3):
        clock.host_work(100)
        clock.enqueue(10)
    assert clock.device_free_ps == 310
    assert clock.device_busy_ps == 30
    assert clock.device_idle_ps == 280


def test_synchronize_and_events() -> None:
    clock = Clock()
    clock.enqueue(50)
    first = clock.record()
    clock.enqueue(50)
    assert clock.wait_until(first) == 50
    assert clock.synchronize() == 100
    assert clock.synchronize() == 100
    assert clock.wait_until(first) == 100


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="not negative"):
        Clock().enqueue(-1)
