"""No simulated program is faster than the chip's peaks, and nothing is lost between a program and
its kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.costs.registry import rule_for
from torchtpu.perf_model.fusion import fuse
from torchtpu.perf_model.program import Graph, GraphBuilder
from torchtpu.perf_model.roofline import program
from torchtpu.sim.device import SimDevice

CHIPS = [chips.load(name) for name in chips.names() if chips.load(name).complete]
UNARY = ("negate", "exponential", "tanh", "rsqrt")
BINARY = ("add", "multiply", "maximum")


@dataclass(frozen=True)
class Made:
    """A random program and what it computes by the textbook."""

    graph: Graph
    matmul_flops: int
    least_bytes: int  # every input that is used and every output crosses HBM once


@st.composite
def programs(draw: st.DrawFn) -> Made:
    builder = GraphBuilder()
    size = draw(st.sampled_from([8, 100, 128, 1000, 2048]))
    dtype = draw(st.sampled_from(["f32", "bf16"]))
    square = (size, size)
    values = [builder.input(square, dtype) for _ in range(draw(st.integers(1, 3)))]
    flops = 0
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["unary", "binary", "matmul", "transpose"]))
        left, right = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        if kind == "unary":
            made = builder.op(draw(st.sampled_from(UNARY)), (left,), square, dtype)
        elif kind == "binary":
            made = builder.op(draw(st.sampled_from(BINARY)), (left, right), square, dtype)
        elif kind == "transpose":
            made = builder.op("transpose", (left,), square, dtype, permutation=(1, 0))
        else:
            made = builder.op(
                "dot_general",
                (left, right),
                square,
                dtype,
                lhs_contract=(1,),
                rhs_contract=(0,),
            )
            flops += 2 * size**3
        values.append(made)
    last = {values[-1], draw(st.sampled_from(values[len(builder.inputs) :]))}
    graph = builder.build(tuple(sorted(last)))
    return _without_dead_ops(graph, flops)


def _without_dead_ops(graph: Graph, flops: int) -> Made:
    wanted, kept = set(graph.outputs), []
    for op in reversed(graph.ops):
        if wanted.isdisjoint(op.results):
            if op.opcode == "dot_general":
                flops -= 2 * math.isqrt(graph.type_of(op.results[0]).elements) ** 3
            continue
        wanted.update(op.operands)
        kept.append(op)
    live = Graph(
        types=graph.types, inputs=graph.inputs, outputs=graph.outputs, ops=tuple(reversed(kept))
    )
    crossing = (set(graph.inputs) & wanted) | set(graph.outputs)
    return Made(live, flops, sum(graph.type_of(v).size_bytes for v in crossing))


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from(CHIPS))
def test_time_is_at_least_flops_over_peak_and_bytes_over_bandwidth(
    made: Made, chip: chips.Chip
) -> None:
    device = SimDevice(chip)
    start = device.record_event()
    spent_s = (device.launch_program(made.graph) - start) * 1e-12
    assert spent_s >= made.matmul_flops / chip.peak_flops_per_s("bf16")
    assert spent_s >= made.least_bytes / chip.hbm_bytes_per_s


@settings(max_examples=60, deadline=None)
@given(programs())
def test_kernels_sum_to_the_program(made: Made) -> None:
    chip = CHIPS[-1]
    cost, schedule = program(made.graph, chip), fuse(made.graph)
    assert cost.total.matmul_flops == made.matmul_flops
    assert sum(k.matmul_flops for _, _, k in cost.kernels) == made.matmul_flops
    assert sum(k.hbm_bytes for _, _, k in cost.kernels) == cost.total.hbm_bytes
    assert sum(k.hbm_bytes for k in schedule.kernels) == cost.total.hbm_bytes
    assert cost.total.hbm_bytes >= made.least_bytes
    by_op = sum(rule_for(op).cost(op, made.graph, chip).matmul_flops for op in made.graph.ops)
    assert by_op == made.matmul_flops
    placed = sorted(number for kernel in schedule.kernels for number in kernel.ops)
    assert set(placed) == set(range(len(made.graph.ops)))


@settings(max_examples=20, deadline=None)
@given(st.lists(programs(), min_size=1, max_size=4), st.sampled_from(CHIPS))
def test_the_same_launches_end_at_the_same_picosecond(made: list[Made], chip: chips.Chip) -> None:
    ends = []
    for _ in range(2):
        device = SimDevice(chip)
        for one in made:
            device.record(7)
            end = device.launch_program(one.graph)
        ends.append(end)
    assert ends[0] == ends[1]
    assert ends[0] >= device.clock.device_busy_ps
