"""The timeline of a step: collectives beside the core, waits, and what is started early."""

from __future__ import annotations

import pytest

from torchtpu.perf_model import chip
from torchtpu.perf_model.fusion import Schedule, fuse
from torchtpu.perf_model.kernel_cost import KernelCost, kernel_cost
from torchtpu.perf_model.network import topology
from torchtpu.perf_model.network.rates import constants
from torchtpu.perf_model.program import GraphBuilder
from torchtpu.sim.prefetch import prefetch_order
from torchtpu.sim.step import StepSimulator, Timeline, slowest

V6E = chip.load("v6e")
POD = topology.load(V6E, "16x16")
EVERYONE = tuple(range(POD.devices))


def gathered_layers(layers: int, rows: int, width: int = 4096) -> Schedule:
    """x = x @ gather(w) for each layer, gathers in the order of the program."""
    program = GraphBuilder()
    x = program.input((rows, width), "bf16")
    for _ in range(layers):
        shard = program.input((width * width // POD.devices,), "f32")
        narrow = program.op("convert", (shard,), program.types[shard].shape, "bf16")
        whole = program.op(
            "all_gather", (narrow,), (width * width,), "bf16", group=EVERYONE, groups=1
        )
        matrix = program.op("reshape", (whole,), (width, width), "bf16")
        x = program.op(
            "dot_general",
            (x, matrix),
            (rows, width),
            "bf16",
            lhs_contract=(1,),
            rhs_contract=(0,),
        )
    return fuse(program.build((x,)))


def heroes(schedule: Schedule) -> list[str]:
    return [schedule.graph.ops[k.hero].opcode for k in schedule.kernels]


def simulate(schedule: Schedule) -> Timeline:
    costs = [
        KernelCost(kernels=1) if name == "all_gather" else kernel_cost(schedule, kernel, V6E)
        for name, kernel in zip(heroes(schedule), schedule.kernels, strict=True)
    ]
    return StepSimulator(POD).run(schedule, costs)


def test_gathers_hide_behind_long_layers_but_for_the_first() -> None:
    found = simulate(gathered_layers(8, rows=16384))
    one = found.network_s[("all_gather", "ici")] / 8
    assert 0.9 * one < found.exposed_s <= one
    assert found.time_s == pytest.approx(found.busy_s + found.exposed_s, rel=1e-9)


def test_short_layers_wait_for_the_network() -> None:
    found = simulate(gathered_layers(8, rows=16))
    assert found.time_s > 0.95 * found.network_s[("all_gather", "ici")]
    assert found.exposed_s > 0.7 * found.network_s[("all_gather", "ici")]


def test_a_gather_starts_one_layer_ahead_and_its_cast_moves_with_it() -> None:
    schedule = gathered_layers(3, rows=64)
    names = heroes(schedule)
    flags = [name == "all_gather" for name in names]
    order = prefetch_order(schedule, flags)
    assert sorted(order) == list(range(len(names)))
    gathers = [place for place, number in enumerate(order) if flags[number]]
    matmuls = [place for place, number in enumerate(order) if names[number] == "dot_general"]
    assert gathers[1] < matmuls[0] < gathers[2] < matmuls[1]


def test_a_reduction_of_what_is_computed_stays_behind_it() -> None:
    program = GraphBuilder()
    x, w = program.input((64, 64), "bf16"), program.input((64, 64), "bf16")
    for _ in range(2):
        x = program.op(
            "dot_general", (x, w), (64, 64), "bf16", lhs_contract=(1,), rhs_contract=(0,)
        )
        x = program.op("all_reduce", (x,), (64, 64), "bf16", group=EVERYONE, groups=1)
    schedule = fuse(program.build((x,)))
    flags = [name == "all_reduce" for name in heroes(schedule)]
    assert prefetch_order(schedule, flags) == list(range(len(flags)))


def test_the_same_step_takes_the_same_picoseconds() -> None:
    assert simulate(gathered_layers(4, rows=256)) == simulate(gathered_layers(4, rows=256))


def test_a_step_ends_when_its_last_collective_does() -> None:
    program = GraphBuilder()
    x = program.input((1 << 20,), "f32")
    y = program.op("all_reduce", (x,), (1 << 20,), "f32", group=EVERYONE, groups=1)
    schedule = fuse(program.build((y,)))
    found = StepSimulator(POD).run(schedule, [KernelCost(kernels=1)])
    assert found.time_s == pytest.approx(found.network_s[("all_reduce", "ici")], rel=1e-9)
    assert found.waits == {0: pytest.approx(found.time_s)}


def reduced(topology_: topology.Topology, opcode: str = "all_reduce", **attrs: object) -> Timeline:
    """A matmul of a millisecond or so, and a collective of its result."""
    program = GraphBuilder()
    x, w = program.input((8192, 8192), "bf16"), program.input((8192, 8192), "bf16")
    y = program.op(
        "dot_general", (x, w), (8192, 8192), "bf16", lhs_contract=(1,), rhs_contract=(0,)
    )
    z = program.op(opcode, (y,), (8192, 8192), "bf16", **attrs)  # type: ignore[arg-type]
    schedule = fuse(program.build((z,)))
    costs = [
        KernelCost(kernels=1) if name == opcode else kernel_cost(schedule, kernel, V6E)
        for name, kernel in zip(heroes(schedule), schedule.kernels, strict=True)
    ]
    return StepSimulator(topology_).run(schedule, costs)


def test_a_collective_across_slices_waits_for_the_slowest() -> None:
    two = topology.load(V6E, "4x4", slices=2)
    inside = reduced(two, group=tuple(range(16)), groups=2)
    across = reduced(two, group=(0, 16), groups=16)
    assert ("all_reduce", "dcn") in across.network_s
    alone = across.busy_s + across.network_s[("all_reduce", "dcn")]
    late = slowest(2) * constants().dcn_slice_spread
    assert across.time_s == pytest.approx(alone * (1 + late), rel=1e-3)
    assert inside.time_s == pytest.approx(
        inside.busy_s + inside.network_s[("all_reduce", "ici")], rel=1e-3
    )
    assert [slowest(n) for n in (1, 2, 4, 32)] == pytest.approx([0, 0.56, 1.03, 2.07], abs=0.03)


def test_a_permute_sends_what_each_device_holds() -> None:
    ring = tuple(n for i in range(16) for n in (i, (i + 1) % 16))
    found = reduced(topology.load(V6E, "4x4"), "collective_permute", pairs=ring)
    assert found.network_s[("collective_permute", "ici")] > 8192 * 8192 * 2 / 200e9
