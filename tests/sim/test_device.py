"""The simulated device."""

from __future__ import annotations

import pytest

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.constants import constants
from torchtpu.perf_model.program import GraphBuilder
from torchtpu.perf_model.roofline import program_time_s
from torchtpu.sim.device import SimDevice
from torchtpu.sim.host import record_s
from torchtpu.sim.memory import OutOfHBM

V5E = chips.load("v5e")


def test_a_long_program_hides_the_dispatch_of_the_next() -> None:
    device = SimDevice(V5E)
    for _ in range(10):
        device.launch(1e-3)
    known = constants()
    expected = 10 * (1e-3 + known.launch_s) + known.host_dispatch_s
    assert device.elapsed_s == pytest.approx(expected, rel=1e-9)


def test_short_programs_run_at_the_speed_of_the_host() -> None:
    device = SimDevice(V5E)
    for _ in range(1000):
        device.launch(1e-6)
    assert device.synchronize() == pytest.approx(1000 * constants().host_dispatch_s, rel=0.01)


def test_a_program_takes_what_the_cost_model_says() -> None:
    builder = GraphBuilder()
    x = builder.input((1024, 1024), "f32")
    graph = builder.build((builder.op("add", (x, x), (1024, 1024), "f32"),))
    device = SimDevice(V5E)
    device.launch_program(graph)
    known = constants()
    expected = program_time_s(graph, V5E) + known.launch_s + known.host_dispatch_s
    assert device.elapsed_s == pytest.approx(expected, abs=1e-11)


def test_events_measure_simulated_time() -> None:
    device = SimDevice(V5E)
    start = device.record_event()
    device.launch(1e-3, host_s=0.0)
    assert device.record_event() - start == 1_002_000_000


def test_the_same_calls_give_the_same_picosecond() -> None:
    def run() -> int:
        device = SimDevice(V5E)
        for number in range(100):
            device.launch(number * 1.7e-6)
        return device.record_event()

    assert run() == run()


def test_capacity_is_the_chips() -> None:
    device = SimDevice(V5E)
    device.allocate(V5E.hbm_usable_bytes)
    with pytest.raises(OutOfHBM, match="v5e"):
        device.allocate(1)
    device.free(V5E.hbm_usable_bytes)
    assert device.stats()["live_allocations"] == 0
    SimDevice(V5E, enforce_capacity=False).allocate(10**15)


def test_an_incomplete_chip_cannot_be_simulated() -> None:
    with pytest.raises(chips.IncompleteChip):
        SimDevice(chips.load("8i"))


def test_stats_have_stable_names() -> None:
    assert set(SimDevice(V5E).stats()) == {
        *("chip", "launches", "elapsed_s", "device_busy_s", "device_idle_s", "hbm_in_use_bytes"),
        *("hbm_peak_bytes", "hbm_capacity_bytes", "allocations", "live_allocations"),
    }


def test_a_program_must_fit_with_its_outputs_less_what_it_overwrites() -> None:
    builder = GraphBuilder()
    x = builder.input((1 << 20, 1 << 11), "f32")  # 8 GiB
    graph = builder.build((builder.op("negate", (x,), (1 << 20, 1 << 11), "f32"),))
    device = SimDevice(V5E)
    device.allocate(8 << 30)
    with pytest.raises(OutOfHBM, match=r"requested 8\.00 GiB.*\nThe program takes 8\.00 GiB"):
        device.admit(graph)
    device = SimDevice(V5E)
    device.allocate(8 << 30)
    device.admit(graph, reused_bytes=8 << 30)
    assert device.stats()["hbm_peak_bytes"] == 8 << 30


def test_recording_ops_takes_host_time_and_no_device_time() -> None:
    device = SimDevice(V5E)
    device.record(1000)
    assert device.elapsed_s == pytest.approx(1000 * record_s())
    assert device.stats()["device_busy_s"] == 0
