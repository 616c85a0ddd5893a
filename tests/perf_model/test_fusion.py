"""Fusion: which ops share a kernel, what crosses HBM, and that kernels can run in their order."""

from __future__ import annotations

import random
import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.perf_model.jax_programs import adam, graph, mlp_step, softmax, spec
from torchtpu.perf_model.costs.registry import Kind
from torchtpu.perf_model.fusion import Schedule, fuse
from torchtpu.perf_model.program import Graph, GraphBuilder

MIB = 2**20


def check_executable(schedule: Schedule) -> None:
    """Kernels read only inputs, constants and what earlier kernels wrote; all outputs exist."""
    program = schedule.graph
    constants = {r for op in program.ops if op.opcode == "constant" for r in op.results}
    available = set(program.inputs) | constants
    for kernel in schedule.kernels:
        inside = {r for index in kernel.ops for r in program.ops[index].results}
        reads = {value for value, _ in kernel.reads} | {taken for _, taken in kernel.in_place}
        assert reads <= available
        for index in kernel.ops:
            for value in program.ops[index].operands:
                assert schedule.source[value] in inside | available
        available |= {value for value, _ in kernel.writes}
    assert {schedule.source[v] for v in program.outputs} <= available


def test_an_elementwise_chain_is_one_kernel_with_traffic_at_its_borders() -> None:
    schedule = fuse(graph(lambda x, y: jnp.tanh(x * 2 + y) - x, spec(1024, 256), spec(1024, 256)))
    (kernel,) = schedule.kernels
    assert kernel.hbm_bytes == 3 * MIB


def test_adam_is_one_kernel_with_three_outputs() -> None:
    (kernel,) = fuse(graph(adam, *[spec(1024, 256)] * 4)).kernels
    assert kernel.hbm_bytes == 7 * MIB
    assert len(kernel.writes) == 3


def test_softmax_reads_its_input_twice_and_shares_exp_with_the_sum() -> None:
    kernels = fuse(graph(softmax, spec(1024, 256))).kernels
    assert [k.kind for k in kernels] == [Kind.REDUCE, Kind.REDUCE, Kind.LOOP]
    assert sum(k.hbm_bytes for k in kernels) == pytest.approx(5 * MIB, rel=0.02)


def test_a_matmul_takes_its_epilogue() -> None:
    def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
        return jax.nn.relu(x @ w + b) + r

    types = spec(512, 512), spec(512, 512), spec(512), spec(512, 512)
    (kernel,) = fuse(graph(layer, *types)).kernels
    assert kernel.kind is Kind.MATMUL
    assert kernel.hbm_bytes == 4 * MIB + 2048


def test_an_expensive_producer_is_not_recomputed_inside_a_matmul() -> None:
    def kernels(function: Any) -> int:
        types = spec(512, 512), spec(512, 512)
        return len(fuse(graph(lambda x, w: function(x) @ w, *types)).kernels)

    assert kernels(jnp.exp) == 2
    assert kernels(lambda x: x * 2) == 1


def test_a_matmul_does_not_read_more_to_compute_its_operand() -> None:
    def layer(x: Any, y: Any, w: Any) -> Any:
        return (jnp.exp(x) * y) @ w

    schedule = fuse(graph(layer, *[spec(512, 512)] * 3))
    assert [k.hbm_bytes for k in schedule.kernels] == [3 * MIB, 3 * MIB]


def test_two_matmuls_do_not_share_a_kernel() -> None:
    types = spec(64, 64), spec(64, 64), spec(64, 64)
    kinds = [k.kind for k in fuse(graph(lambda x, a, b: x @ a @ b, *types)).kernels]
    assert kinds == [Kind.MATMUL, Kind.MATMUL]


def test_sibling_reductions_share_a_pass() -> None:
    (kernel,) = fuse(graph(lambda x: (x.sum(1), (x * x).sum(1)), spec(1024, 256))).kernels
    assert kernel.hbm_bytes == MIB + 2 * 4096


def test_reductions_that_depend_on_each_other_do_not() -> None:
    def variance(x: Any) -> Any:
        return ((x - x.mean(1, keepdims=True)) ** 2).sum(1)

    schedule = fuse(graph(variance, spec(1024, 256)))
    assert [k.kind for k in schedule.kernels] == [Kind.REDUCE, Kind.REDUCE]
    check_executable(schedule)


def test_reshapes_cost_nothing() -> None:
    assert not fuse(graph(lambda x: x.reshape(8, 8).reshape(64), spec(64))).kernels


def test_a_slice_reads_only_its_part() -> None:
    (kernel,) = fuse(graph(lambda x: x[:16] * 2, spec(1024, 256))).kernels
    assert kernel.hbm_bytes == 2 * 16 * 256 * 4


def test_an_update_is_in_place_only_where_its_operand_may_go() -> None:
    def update(x: Any, u: Any) -> Any:
        return jax.lax.dynamic_update_slice(x, u, (0, 0))

    types = spec(1024, 256), spec(4, 256)
    (copied,) = fuse(graph(update, *types)).kernels
    (in_place,) = fuse(graph(update, *types, donate_argnums=0)).kernels
    assert in_place.hbm_bytes == 2 * 4096
    assert copied.hbm_bytes == 2 * MIB + 4096


def test_dead_code_is_no_kernel() -> None:
    builder = GraphBuilder()
    x = builder.input((8,), "f32")
    builder.op("sine", (x,), (8,), "f32")
    assert not fuse(builder.build((x,))).kernels


def test_a_training_step_can_run_in_kernel_order() -> None:
    schedule = fuse(graph(mlp_step, [spec(64, 128), spec(128, 32)], spec(16, 64)))
    check_executable(schedule)
    assert sum(k.kind is Kind.MATMUL for k in schedule.kernels) == 5


def random_graph(seed: int, size: int) -> Graph:
    """Elementwise ops, reductions, broadcasts, dots, sorts and updates with random edges."""
    choose = random.Random(seed)
    builder = GraphBuilder()
    square = [builder.input((64, 64), "f32") for _ in range(3)]
    rows = [builder.input((64,), "f32")]
    for _ in range(size):
        a, b = choose.choice(square[-12:]), choose.choice(square[-12:])
        kind = choose.choice(
            ["add", "exponential", "reduce", "spread", "dot", "sort", "reshape", "update"]
        )
        if kind == "reduce":
            zero = builder.op("constant", (), (), "f32", splat=True)
            rows.append(builder.op("reduce", (a, zero), (64,), "f32", dimensions=(1,)))
        elif kind == "spread":
            square.append(
                builder.op("broadcast_in_dim", (choose.choice(rows[-4:]),), (64, 64), "f32")
            )
        elif kind == "dot":
            square.append(
                builder.op(
                    "dot_general", (a, b), (64, 64), "f32", lhs_contract=(1,), rhs_contract=(0,)
                )
            )
        elif kind == "update":
            square.append(builder.op("dynamic_update_slice", (a, b), (64, 64), "f32"))
        elif kind in {"add"}:
            square.append(builder.op("add", (a, b), (64, 64), "f32"))
        else:
            square.append(builder.op(kind, (a,), (64, 64), "f32"))
    outputs = tuple({*choose.sample(square, 3), rows[-1], square[-1]})
    return builder.build(outputs)


@pytest.mark.parametrize("seed", range(60))
def test_any_graph_fuses_into_kernels_that_can_run_in_order(seed: int) -> None:
    check_executable(fuse(random_graph(seed, 80)))


def test_a_hundred_thousand_ops_fuse_in_seconds() -> None:
    program = random_graph(0, 100_000)
    begin = time.process_time()
    fuse(program)
    assert time.process_time() - begin < 10
