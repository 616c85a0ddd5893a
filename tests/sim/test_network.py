"""Simulated collectives: agreement with the closed form, conservation, faults, contention."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import network as benchmark
from torchtpu.perf_model.network import topology
from torchtpu.perf_model.network.collectives import CollectiveError, collective_cost
from torchtpu.perf_model.network.routes import Link
from torchtpu.perf_model.network.topology import Topology, TopologyError
from torchtpu.sim.clock import to_s
from torchtpu.sim.collectives import Request, simulate, simulate_together
from torchtpu.sim.faults import Faults, NetworkError, dead_links
from torchtpu.sim.network import Network

V6E = topology.from_name("v6e:16x16")
ROW, COLUMN, POD = tuple(range(16)), tuple(range(0, 256, 16)), tuple(range(256))
LINK = Link(0, 3, 0, 0, 0, 1)  # from chip (3, 0) to chip (4, 0)
MIB = 2**20
US = 1_000_000  # picoseconds
SYMMETRIC = ("v6e:2x2", "v6e:4x4", "v6e:16x16", "v5p:4x4x4", "v5p:8x8x8", "tpu7x:4x4x4")
OTHERS = ("v6e:2x4", "v6e:8x16", "v5p:4x4x8", "v5p:2x4x4", "tpu7x:2x2x1", "tpu7x:16x16x36")
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "barrier")


def _all(found: Topology) -> tuple[int, ...]:
    return tuple(range(found.devices))


def _ratio(kind: str, size: int, group: tuple[int, ...], found: Topology) -> float:
    simulated = to_s(simulate(kind, size, group, found).time_ps)
    return simulated / collective_cost(kind, size, group, found).time_s


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SYMMETRIC), st.sampled_from(KINDS), st.integers(10, 34))
def test_closed_form_and_simulation_agree(name: str, kind: str, exponent: int) -> None:
    found = topology.from_name(name)
    assert _ratio(kind, 2**exponent, _all(found), found) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
def test_they_agree_on_unequal_axes(name: str, kind: str) -> None:
    found = topology.from_name(name)
    for size in (2**16, 2**27, 2**33):
        assert _ratio(kind, size, _all(found), found) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    "group", [ROW, (0, 1, 2, 3), (0, 4, 8, 12), (0, 8), tuple(range(0, 64)), (0, 1, 16, 17)]
)
def test_they_agree_on_part_of_a_slice(group: tuple[int, ...]) -> None:
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        for size in (2**14, 2**24, 2**30):
            assert _ratio(kind, size, group, V6E) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("kind", [*KINDS, "collective_permute"])
def test_they_agree_across_slices_and_cores(kind: str) -> None:
    for name, slices in (("v6e:4x4", 2), ("tpu7x:2x2x2", 4)):
        found = topology.from_name(name, slices=slices)
        assert _ratio(kind, 2**28, _all(found), found) == pytest.approx(1, abs=0.05)


def test_the_pod_of_9216_chips_takes_seconds() -> None:
    found = topology.from_name("tpu7x:16x16x36")
    begin = time.process_time()
    simulated = simulate("all_reduce", 2**30, _all(found), found)
    assert time.process_time() - begin < 5
    assert simulated.alike == found.devices == 18432


@pytest.mark.parametrize(
    ("name", "group"),
    [("v6e:4x4", tuple(range(16))), ("v6e:16x16", ROW), ("v6e:16x16", (0, 4, 8, 12))],
)
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
def test_folding_changes_nothing(name: str, group: tuple[int, ...], kind: str) -> None:
    found = topology.from_name(name)
    folded = simulate(kind, 3 * MIB, group, found)
    whole = simulate(kind, 3 * MIB, group, found, fold=False)
    assert folded.messages < whole.messages or folded.alike == 1
    assert folded.time_ps == whole.time_ps
    assert folded.ici_bytes == whole.ici_bytes


def test_folding_two_cores_into_one_is_close() -> None:
    """Unfolded, one core's messages go before the other's where folded they share evenly."""
    found = topology.from_name("tpu7x:2x2x2")
    folded = simulate("all_reduce", 32 * MIB, _all(found), found)
    whole = simulate("all_reduce", 32 * MIB, _all(found), found, fold=False)
    assert folded.time_ps == pytest.approx(whole.time_ps, rel=0.05)


@pytest.mark.parametrize("name", ["v6e:4x4", "v6e:16x16", "v5p:4x4x4"])
def test_bytes_are_conserved(name: str) -> None:
    """Every chip receives what it lacks: V (N - 1) / N, over one link where the axis is a ring."""
    found = topology.from_name(name)
    size = 12 * MIB * found.chips
    lacking = size * (found.chips - 1)
    gather = simulate("all_gather", size, _all(found), found)
    reduce = simulate("all_reduce", size, _all(found), found)
    if all(found.wraps):
        assert gather.ici_bytes == lacking
        assert reduce.ici_bytes == 2 * lacking
    else:  # one ring through all chips; a line is a ring over two links a step
        assert gather.ici_bytes == lacking
        assert lacking <= reduce.ici_bytes / 2 <= 2 * lacking


def test_an_all_to_all_carries_every_block_over_its_distance() -> None:
    """Mean distance of a ring of 16: 4 hops, for 15 / 16 of the data."""
    simulated = simulate("all_to_all", 16 * MIB, ROW, V6E)
    assert simulated.ici_bytes == 16 * (16 * MIB // 256) * 4 * 16 * 16


def test_dcn_bytes_are_conserved() -> None:
    found = topology.from_name("v6e:4x4", slices=4)
    simulated = simulate("all_reduce", 64 * MIB, _all(found), found)
    assert simulated.dcn_bytes == 64 * 2 * (64 * MIB // 16) * 3 // 4


def test_the_same_input_gives_the_same_picosecond() -> None:
    faults = Faults(slow={LINK: 0.7}, late_ps={5: 3 * US})
    one = simulate("all_reduce", 5 * MIB, ROW, V6E, faults=faults)
    assert simulate("all_reduce", 5 * MIB, ROW, V6E, faults=faults) == one
    assert isinstance(one.time_ps, int)


@given(st.integers(0, 2**32), st.integers(1, 2**20))
@settings(max_examples=30, deadline=None)
def test_more_bytes_never_take_less_time(size: int, more: int) -> None:
    for kind in ("all_gather", "all_to_all"):
        less = simulate(kind, size, ROW, V6E).time_ps
        assert simulate(kind, size + more, ROW, V6E).time_ps >= less


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
def test_a_slow_link_slows_its_ring_by_as_much(share: float) -> None:
    size = 256 * MIB
    healthy = simulate("all_gather", size, ROW, V6E).time_ps
    slow = simulate("all_gather", size, ROW, V6E, faults=Faults(slow={LINK: share})).time_ps
    assert slow / healthy == pytest.approx(1 / share, rel=0.05)


def test_a_slow_link_that_nobody_uses_changes_nothing() -> None:
    slow = Faults(slow={LINK: 0.1})
    assert (
        simulate("all_gather", MIB, COLUMN, V6E, faults=slow).time_ps
        == simulate("all_gather", MIB, COLUMN, V6E).time_ps
    )


def test_a_ring_with_a_dead_link_is_a_line() -> None:
    """Twice the time, no byte over the dead cable, all of it over the rest."""
    healthy = simulate("all_gather", 256 * MIB, ROW, V6E)
    broken = simulate("all_gather", 256 * MIB, ROW, V6E, faults=dead_links([LINK]))
    assert broken.time_ps / healthy.time_ps == pytest.approx(2, rel=0.02)
    assert "ici +x of chip 3,0,0 of slice 0" not in broken.link_bytes
    assert "ici -x of chip 4,0,0 of slice 0" not in broken.link_bytes
    assert "ici +x of chip 3,1,0 of slice 0" in broken.link_bytes


def test_where_a_line_is_cut_the_way_goes_around() -> None:
    found = topology.from_name("v6e:4x4")
    healthy = simulate("all_gather", 64 * MIB, _all(found), found)
    dead = dead_links([Link(0, 0, 1, 0, 1, 1), Link(0, 0, 1, 0, 0, 1)])
    around = simulate("all_gather", 64 * MIB, _all(found), found, faults=dead)
    assert around.time_ps > healthy.time_ps
    assert around.ici_bytes > healthy.ici_bytes


def test_a_device_that_is_cut_off_is_an_error() -> None:
    found = topology.from_name("v6e:4x4")
    dead = dead_links([Link(0, 0, 0, 0, 0, 1), Link(0, 0, 0, 0, 1, 1)])
    with pytest.raises(NetworkError, match="cut off from device 0 by dead links"):
        simulate("all_gather", MIB, _all(found), found, faults=dead)


def test_all_wait_for_a_straggler() -> None:
    late = Faults(late_ps={5: 100 * US})
    healthy = simulate("all_reduce", 4 * MIB, ROW, V6E, fold=False).time_ps
    assert simulate("all_reduce", 4 * MIB, ROW, V6E, faults=late).time_ps == healthy + 100 * US


def test_a_straggler_outside_of_the_group_is_not_waited_for() -> None:
    """Only the last device counts, and that is the straggler's own row."""
    late = Faults(late_ps={200: 7 * US})
    found = simulate("send_recv", MIB, (0, 3), V6E, faults=late)
    assert found.time_ps == simulate("send_recv", MIB, (0, 3), V6E).time_ps


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (Faults(slow={LINK: 0.0}), "above 0 and at most 1, got 0.0; a link that carries nothing"),
        (Faults(slow={LINK: 2.0}), "above 0 and at most 1"),
        (dead_links([Link(0, 16, 0, 0, 0, 1)]), "v6e:16x16 has no link from chip"),
        (dead_links([Link(0, 0, 0, 0, 2, 1)]), "v6e:16x16 has no link from chip"),
        (dead_links([Link(1, 0, 0, 0, 0, 1)]), "has no link from chip"),
        (Faults(late_ps={0: -1}), "expected a delay >= 0"),
    ],
)
def test_impossible_faults(faults: Faults, says: str) -> None:
    with pytest.raises(NetworkError, match=says):
        simulate("all_gather", MIB, ROW, V6E, faults=faults)


def test_impossible_requests() -> None:
    with pytest.raises(CollectiveError, match="expected one of all_reduce"):
        simulate("gather", MIB, ROW, V6E)
    with pytest.raises(CollectiveError, match="at least 0"):
        simulate("all_gather", -1, ROW, V6E)
    with pytest.raises(NetworkError, match=r"closed form only: .*not a box of the torus"):
        simulate("all_gather", MIB, (0, 1, 17), V6E)
    with pytest.raises(TopologyError, match="no device 999"):
        simulate("all_gather", MIB, ROW, V6E, faults=Faults(late_ps={999: 1}))


def test_two_collectives_on_one_axis_share_it_and_on_two_do_not() -> None:
    row = Request(kind="all_gather", size_bytes=256 * MIB, group=ROW)
    column = Request(kind="all_gather", size_bytes=256 * MIB, group=COLUMN)
    alone = simulate_together([row], V6E).time_ps
    assert simulate_together([row, column], V6E).end_ps == (alone, alone)
    assert simulate_together([row, row], V6E).time_ps / alone == pytest.approx(2, rel=0.02)


def test_a_later_collective_waits_only_for_what_is_left() -> None:
    first = Request(kind="all_gather", size_bytes=256 * MIB, group=ROW)
    alone = simulate_together([first], V6E).time_ps
    second = Request(kind="all_gather", size_bytes=256 * MIB, group=ROW, at_ps=alone)
    assert simulate_together([first, second], V6E).end_ps == (alone, 2 * alone)


def test_messages_queue_at_a_link_and_are_cut_through() -> None:
    """1000 bytes at 1 GB/s: 1 us; two links of 10 ns; the second message waits for the first."""
    network, seen = Network([10**9, 10**9], [10_000, 10_000]), list[int]()
    for _ in range(2):
        network.send(0, (0, 1), 1000, seen.append)
    assert network.run() == 2 * US + 20_000
    assert seen == [US + 20_000, 2 * US + 20_000]
    assert network.carried == [2000, 2000]
    assert network.busy_ps == [2 * US, 2 * US]


def test_a_slow_link_behind_a_fast_one_sets_the_pace() -> None:
    network, seen = Network([10**9, 10**8, 10**9], [0, 0, 0]), list[int]()
    network.send(0, (0, 1, 2), 1000, seen.append)
    network.run()
    assert seen == [10 * US]


def test_the_benchmark_reports_what_is_published() -> None:
    rows = benchmark.beside_published()
    assert len(rows) == 13
    errors = {str(row["what"]): abs(float(str(row["error_percent"]))) for row in rows}
    assert all(error < 5 for what, error in errors.items() if "tpu7x" in what)
