"""Footprints of groups and closed-form costs of collectives, against formulas and measurements."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu.perf_model.network import box, topology
from torchtpu.perf_model.network import rates as network
from torchtpu.perf_model.network.axis_times import exchange_crossings
from torchtpu.perf_model.network.collectives import (
    KINDS,
    CollectiveError,
    collective_cost,
    permute_cost,
)
from torchtpu.perf_model.network.colours import plan, used_spans
from torchtpu.perf_model.network.footprint import AxisSpan, footprint, siblings
from torchtpu.perf_model.network.routes import route, traffic, twisted_distances
from torchtpu.perf_model.network.topology import Topology, TopologyError

V6E = topology.from_name("v6e:16x16")
ROW = tuple(range(16))
POD = tuple(range(256))
BIG = 1e12  # bytes for which latency does not count


def _all(found: Topology) -> tuple[int, ...]:
    return tuple(range(found.devices))


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ((0,), "one device"),
        (ROW, "ring of 16 on x"),
        ((0, 1, 2, 3), "line of 4 on x"),
        ((0, 4, 8, 12), "ring of 4 on x every 4"),
        ((0, 32), "line of 2 on y every 2"),
        (POD, "ring of 16 on x, ring of 16 on y"),
        ((0, 1, 17), "3 devices, not a box"),
        ((0, 1, 3), "3 devices, not a box"),
    ],
)
def test_footprints(group: tuple[int, ...], text: str) -> None:
    assert str(footprint(group, V6E)) == text


def test_a_footprint_sees_cores_and_slices() -> None:
    tpu7x = topology.from_name("tpu7x:2x2x1", slices=2)
    assert str(footprint((0, 1), tpu7x)) == "2 cores of a chip"
    assert footprint((0, 1), tpu7x).fabric == "on_chip"
    assert footprint((0, 8), tpu7x).fabric == "dcn"
    assert footprint(tuple(range(16)), tpu7x).cores == 2


@pytest.mark.parametrize("group", [(), (0, 0), (0, 256)])
def test_impossible_groups(group: tuple[int, ...]) -> None:
    with pytest.raises(TopologyError):
        footprint(group, V6E)


@pytest.mark.parametrize("group", [ROW, (0, 1, 2, 3), (0, 8), (0, 16, 32, 48), POD])
def test_siblings_tile_the_topology(group: tuple[int, ...]) -> None:
    found = siblings(group, V6E)
    assert found[0] == group
    assert sorted(device for one in found for device in one) == list(POD)
    assert len({str(footprint(one, V6E)) for one in found}) == 1


# AI-Hypercomputer/tpu-recipes@c8cfe2f6, microbenchmarks/ironwood/collectives/all_gather.md: shards
# of `elements` float32, gathered over four devices; GB/s that a chip receives for both its devices.
ALL_GATHER = [
    ("2x2x1", 65536, 71.7703034),
    ("2x2x1", 262144, 129.1869148),
    ("2x2x1", 1048576, 161.9040742),
    ("2x2x1", 4194304, 174.765465),
    ("2x2x1", 16777216, 178.7714158),
    ("2x2x2", 65536, 69.53210305),
    ("2x2x2", 262144, 127.3945462),
    ("2x2x2", 1048576, 162.0864029),
    ("2x2x2", 4194304, 174.6652133),
    ("2x2x2", 16777216, 178.7592252),
]


def test_the_published_all_gather_curve() -> None:
    errors = []
    for shape, elements, published in ALL_GATHER:
        found = topology.from_name(f"tpu7x:{shape}")
        shard = 4 * elements
        cost = collective_cost("all_gather", 4 * shard, (0, 2, 4, 6), found)
        errors.append(abs(2 * 3 * shard / cost.time_s / 1e9 / published - 1))
    assert max(errors) < 0.05
    assert sum(errors) / len(errors) < 0.02


@pytest.mark.parametrize(
    ("name", "axes"), [("v6e:16x16", 2), ("v5p:4x4x4", 3), ("v4:8x8x8", 3), ("tpu7x:4x4x4", 3)]
)
def test_bandwidth_on_a_torus(name: str, axes: int) -> None:
    """All-gather and reduce-scatter V / (n W), all-reduce 2 V / (n W)."""
    found = topology.from_name(name)
    both_ways = 2 * found.chip.value("ici.one_way_bytes_per_s")
    ideal = BIG * (1 - 1 / found.chips) / (axes * both_ways / found.cores)
    group = tuple(range(0, found.devices, found.cores))
    for kind, times in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        seconds = collective_cost(kind, BIG, group, found).time_s
        assert seconds == pytest.approx(times * ideal, rel=1e-3)


def test_a_line_has_half_the_bandwidth_of_a_ring() -> None:
    ring = collective_cost("all_gather", BIG, ROW, V6E)
    line = collective_cost("all_gather", BIG, tuple(range(8)), topology.from_name("v6e:8x8"))
    assert line.time_s / ring.time_s == pytest.approx(2 * (7 / 8) / (15 / 16), rel=1e-3)


def test_all_to_all_on_a_ring() -> None:
    """V / (4 W) for a ring, twice that for a line (sharding.md)."""
    both_ways = 2 * V6E.chip.value("ici.one_way_bytes_per_s")
    ring = collective_cost("all_to_all", BIG, ROW, V6E).time_s
    line = collective_cost("all_to_all", BIG, tuple(range(8)), topology.from_name("v6e:8x8")).time_s
    assert ring == pytest.approx(BIG / (4 * both_ways), rel=1e-3)
    assert line == pytest.approx(BIG / (2 * both_ways), rel=1e-3)


@pytest.mark.parametrize("count", range(2, 12))
@pytest.mark.parametrize("ring", [True, False])
def test_crossings_of_an_all_to_all_are_counted(count: int, ring: bool) -> None:
    """Against a count of every block over every link, by the shorter way."""
    links = [0.0] * count
    for source, target in itertools.permutations(range(count), 2):
        ahead = (target - source) % count if ring else target - source
        ways = [(ahead, 1.0)]
        if ring and ahead * 2 == count:
            ways = [(ahead, 0.5)]
        elif ring and ahead * 2 > count:
            continue
        for steps, weight in ways:
            for step in range(max(0, steps)):
                links[(source + step) % count] += weight
    span = AxisSpan(axis="x", count=count, stride=1, sharing=1, ring=ring)
    assert sum(exchange_crossings(span)) == pytest.approx(max(links))


def test_latency_grows_with_the_way() -> None:
    """1 us a hop, N / 2 of them with wrap and N - 1 without, and the launch."""
    known = network.rates(V6E.chip)
    ring = collective_cost("all_gather", 16, ROW, V6E)
    line = collective_cost("all_gather", 8, tuple(range(8)), topology.from_name("v6e:8x8"))
    assert ring.latency_s == pytest.approx(known.launch_s + 8 * known.hop_latency_s)
    assert line.latency_s == pytest.approx(known.launch_s + 7 * known.hop_latency_s)
    assert ring.time_s == pytest.approx(ring.latency_s, rel=1e-3)


def test_interleaved_groups_share_links() -> None:
    alone = collective_cost("all_gather", BIG, ROW, V6E)
    every_fourth = collective_cost("all_gather", BIG, (0, 4, 8, 12), V6E)
    assert every_fourth.time_s / alone.time_s == pytest.approx(4 * (3 / 4) / (15 / 16), rel=1e-3)


def test_what_the_compiler_does_on_slices_that_do_not_wrap() -> None:
    """Algorithms that libtpu 0.0.42.1 names for these shapes (2026-11-30)."""

    def used(kind: str, name: str) -> int:
        found = topology.from_name(name)
        return len(used_spans(kind, footprint(_all(found), found).spans))

    assert used("all_gather", "v6e:16x16") == 2  # 2DAllGatherOnMajorDim
    assert used("all_gather", "v5p:4x4x8") == 3  # 3DAllGatherOnMajorDim
    assert used("all_gather", "v5p:2x2x2") == 3
    for name in ("v6e:4x4", "v6e:8x16", "v5p:2x2x4"):
        assert used("all_gather", name) == 1  # 1DAllGather, one ring through all chips
    assert used("reduce_scatter", "v6e:8x16") == 1  # StrategyRing
    assert used("all_reduce", "v6e:2x4") == 1  # UniDirection1DRingStrategy
    assert used("all_reduce", "v6e:4x4") == 2  # UniDirectionNDRingStrategy
    assert used("all_reduce", "v6e:8x16") == 2  # StrategyND, 2 colours
    assert used("all_reduce", "v5p:2x2x4") == 3  # StrategyND, 3 colours


def test_colours_are_rotations_whose_shares_add_up() -> None:
    for name in ("v5p:4x4x4", "v5p:4x8x8", "tpu7x:16x16x36"):
        found = topology.from_name(name)
        colours = plan(footprint(_all(found), found).spans)
        assert {colour.order for colour in colours} == {(0, 1, 2), (1, 2, 0), (2, 0, 1)}
        assert sum(colour.share for colour in colours) == pytest.approx(1)


@settings(deadline=None)
@given(st.tuples(*[st.integers(1, 5)] * 3).filter(box.has_cycle))
def test_a_box_is_walked_once_round(sizes: tuple[int, ...]) -> None:
    places = box.cycle(sizes)
    assert len(set(places)) == len(places) == math.prod(sizes)
    for here, there in zip(places, (*places[1:], places[0]), strict=True):
        assert sum(abs(a - b) for a, b in zip(here, there, strict=True)) == 1


def test_routes_take_the_shorter_way_round() -> None:
    path = route(V6E.coords(1), V6E.coords(15), V6E)
    assert [(link.axis, link.step) for link in path] == [(0, -1)] * 2
    assert len(route(V6E.coords(0), V6E.coords(8 * 16 + 8), V6E)) == 16


def test_opposite_chips_use_both_ways_round() -> None:
    pairs = tuple((x, (x + 8) % 16) for x in range(16))
    assert traffic(pairs, V6E).busiest == 4


def test_point_to_point() -> None:
    one_way = V6E.chip.value("ici.one_way_bytes_per_s")
    shift = collective_cost("collective_permute", 16 * BIG, ROW, V6E)
    send = collective_cost("send_recv", BIG, (0, 3), V6E)
    assert shift.time_s == pytest.approx(BIG / one_way, rel=1e-3)
    assert send.time_s == pytest.approx(BIG / one_way, rel=1e-3)
    assert permute_cost(BIG, [(0, 3), (1, 4)], V6E).time_s == pytest.approx(
        2 * BIG / one_way, rel=1e-3
    )
    with pytest.raises(CollectiveError, match="a group of two devices, got 3"):
        collective_cost("send_recv", 1, (0, 1, 2), V6E)


def test_between_slices_a_shard_goes_over_dcn() -> None:
    """Reduce-scatter in the slice, all-reduce of the shards over DCN, all-gather back."""
    two = topology.from_name("v6e:16x16", slices=2)
    inside = collective_cost("all_reduce", BIG, POD, V6E)
    across = collective_cost("all_reduce", BIG, _all(two), two)
    per_chip = two.chip.value("dcn.nic_bytes_per_s") / 8
    assert across.fabric == "dcn"
    assert across.dcn_bytes == pytest.approx(BIG / 256)
    assert across.time_s - inside.time_s == pytest.approx(BIG / 256 / per_chip, rel=1e-3)


def test_the_cores_of_a_chip_exchange_on_it() -> None:
    found = topology.from_name("tpu7x:4x4x4")
    cost = collective_cost("all_gather", BIG, (0, 1), found)
    assert cost.fabric == "on_chip"
    assert cost.busiest_link_bytes == 0
    assert cost.time_s == pytest.approx(
        BIG / 2 / found.chip.value("ici.on_chip_bytes_per_s"), rel=1e-3
    )


def test_a_twisted_torus_is_faster_for_all_to_all() -> None:
    """Mean distances 3.625 and 4.625 against 4 and 5; all links carry the same."""
    for name, mean in (("v4:4x4x8", 3.625), ("v4:4x8x8", 4.625)):
        plain, twisted = topology.from_name(name), topology.from_name(f"{name}_twisted")
        assert twisted_distances(twisted)[0] == mean
        slow = collective_cost("all_to_all", BIG, _all(plain), plain).time_s
        assert slow / collective_cost("all_to_all", BIG, _all(twisted), twisted).time_s > 1.25


@settings(deadline=None)
@given(
    st.sampled_from(KINDS), st.integers(0, 10**12), st.sampled_from([ROW, POD, (0, 8), (0, 1, 17)])
)
def test_costs_grow_with_size_and_never_undercut_their_latency(
    kind: str, size: int, group: tuple[int, ...]
) -> None:
    if kind == "send_recv":
        group = (0, 8)
    cost = collective_cost(kind, size, group, V6E)
    assert cost.time_s >= cost.latency_s * (1 - 1e-9) > 0
    assert collective_cost(kind, 2 * size, group, V6E).time_s >= cost.time_s


def test_one_device_has_nothing_to_do() -> None:
    assert collective_cost("all_reduce", BIG, (7,), V6E).time_s == 0


@pytest.mark.parametrize(
    ("kind", "size", "says"),
    [
        ("allreduce", 1, "expected one of all_reduce, all_gather"),
        ("all_reduce", -1, "at least 0 bytes"),
        ("all_reduce", math.nan, "at least 0 bytes"),
    ],
)
def test_bad_requests(kind: str, size: float, says: str) -> None:
    with pytest.raises(CollectiveError, match=says):
        collective_cost(kind, size, ROW, V6E)


def test_every_network_constant_has_a_source_and_says_why() -> None:
    assert len(network.facts()) == 6
    for name, fact in network.facts().items():
        assert len(fact.note) > 20, name
