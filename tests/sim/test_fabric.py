"""Collectives in flight: what overlaps, what waits, and what fills a gap."""

from __future__ import annotations

import pytest

from torchtpu.perf_model.network import topology
from torchtpu.perf_model.network.collectives import CollectiveError, collective_cost, permute_cost
from torchtpu.perf_model.network.routes import Link
from torchtpu.sim.clock import to_s
from torchtpu.sim.fabric import Calendar, Fabric
from torchtpu.sim.faults import dead_links

V6E = topology.from_name("v6e:16x16")
ROW, COLUMN, POD = tuple(range(16)), tuple(range(0, 256, 16)), tuple(range(256))
SIZE = 2**28


def test_one_collective_takes_its_time() -> None:
    fabric = Fabric(V6E)
    end = fabric.start("all_reduce", SIZE, POD, 0)
    assert to_s(end) == pytest.approx(
        collective_cost("all_reduce", SIZE, POD, V6E).time_s, rel=0.05
    )
    assert fabric.transfers[0].queued_ps == 0
    assert fabric.transfers[0].resources == ("x", "y")


def test_other_axes_overlap_and_the_same_axis_queues() -> None:
    fabric = Fabric(V6E)
    row = fabric.start("all_gather", SIZE, ROW, 0)
    assert fabric.start("all_gather", SIZE, COLUMN, 0) == row
    again = fabric.start("all_gather", SIZE, ROW, 0)
    launch = fabric.start("barrier", 0, (0,), 0)
    assert launch == 0
    assert again == pytest.approx(2 * row, rel=0.01)
    assert fabric.transfers[2].queued_ps > 0
    assert set(fabric.busy_ps()) == {"x", "y"}


def test_nothing_waits_for_what_has_ended() -> None:
    fabric = Fabric(V6E)
    first = fabric.start("all_gather", SIZE, ROW, 0)
    assert fabric.start("all_gather", SIZE, ROW, first) == 2 * first


def test_ici_is_free_while_a_collective_is_on_dcn() -> None:
    """A hierarchical all-reduce leaves the torus to others during its middle part."""
    two = topology.from_name("v6e:4x4", slices=2)
    everyone, inside = tuple(range(32)), tuple(range(4))
    fabric = Fabric(two)
    across = fabric.start("all_reduce", SIZE, everyone, 0)
    assert fabric.start("all_gather", SIZE // 16, inside, 0) < across
    assert set(fabric.transfers[0].resources) == {"dcn", "x", "y"}


def test_what_was_promised_stays() -> None:
    fabric = Fabric(V6E)
    late = fabric.start("all_gather", SIZE, ROW, 10**10)
    early = fabric.start("all_gather", SIZE, ROW, 0)
    assert early < 10**10
    assert fabric.transfers[0].end_ps == late


def test_faults_reach_the_fabric() -> None:
    broken = Fabric(V6E, faults=dead_links([Link(0, 0, 0, 0, 0, 1)]))
    healthy = Fabric(V6E)
    assert broken.start("all_gather", SIZE, ROW, 0) > 1.9 * healthy.start(
        "all_gather", SIZE, ROW, 0
    )


def test_pairs_and_odd_groups_run_too() -> None:
    """A permute by its pairs; a group that is not a box by the closed form, on all axes."""
    fabric = Fabric(V6E)
    shift = fabric.permute(SIZE, [(x, (x + 1) % 16) for x in ROW], 0)
    assert to_s(shift) == pytest.approx(permute_cost(SIZE, [(0, 1)], V6E).time_s, rel=0.01)
    assert fabric.transfers[0].resources == ("x",)
    assert fabric.transfers[0].fabric == "ici"
    odd = Fabric(V6E).start("all_gather", SIZE, (0, 1, 17), 0)
    assert to_s(odd) == pytest.approx(collective_cost("all_gather", SIZE, (0, 1, 17), V6E).time_s)
    assert Fabric(V6E).permute(SIZE, [(3, 3)], 0) == 0


def test_an_unknown_collective_is_an_error() -> None:
    with pytest.raises(CollectiveError, match="unknown collective"):
        Fabric(V6E).start("all_sum", SIZE, ROW, 0)


def test_a_calendar_fills_gaps() -> None:
    calendar = Calendar()
    calendar.take(10, 10)
    calendar.take(40, 10)
    assert calendar.free_from(0, 10) == 0
    assert calendar.free_from(0, 11) == 20
    assert calendar.free_from(15, 25) == 50
    calendar.take(20, 20)
    assert calendar.free_from(5, 6) == 50
    assert calendar.busy_ps == 40
