"""Peak HBM over a schedule."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from tests.perf_model.jax_programs import graph, spec
from torchtpu.perf_model.fusion import fuse
from torchtpu.perf_model.memory import program_memory, strict_memory, temporary_bytes
from torchtpu.perf_model.program import Graph, GraphBuilder
from torchtpu.perf_model.trace import Buffer, Call, StepTrace

MIB = 2**20
USABLE = 100 * MIB


def peak(function: Any, *types: Any, **options: Any) -> int:
    return program_memory(fuse(graph(function, *types, **options)), USABLE).peak_bytes


def test_values_inside_a_kernel_take_no_memory() -> None:
    assert peak(lambda x: jnp.tanh(x * 2) + 1, spec(1024, 256)) == 2 * MIB


def test_donation_lets_the_output_take_over_the_input() -> None:
    assert peak(lambda x: x + 1, spec(1024, 256), donate_argnums=0) == MIB


def test_an_intermediate_lives_until_its_last_use() -> None:
    def chain(x: Any, w: Any) -> Any:
        return x @ w @ w @ w @ w

    # x, w, and at any time at most two results
    assert peak(chain, spec(512, 512), spec(512, 512)) == 4 * MIB


def test_a_saved_activation_stays() -> None:
    def keep(x: Any, w: Any) -> Any:
        a = x @ w
        return (a @ w @ w @ w) * a

    assert peak(keep, spec(512, 512), spec(512, 512)) >= 5 * MIB


def test_temporaries_exclude_inputs_and_outputs() -> None:
    types = spec(512, 512), spec(512, 512)
    assert temporary_bytes(fuse(graph(lambda x, w: x @ w, *types))) == 0
    assert temporary_bytes(fuse(graph(lambda x, w: x @ w @ w, *types))) == MIB


def test_verdict_and_parts() -> None:
    estimate = program_memory(fuse(graph(lambda x: x + 1, spec(1024, 256))), MIB)
    assert not estimate.fits
    assert estimate.headroom_bytes == -MIB
    assert sum(size for _, size in estimate.by_kind) == estimate.peak_bytes


def unary() -> Graph:
    builder = GraphBuilder()
    x = builder.input((1024, 256), "f32")
    return builder.build((builder.op("add", (x, x), (1024, 256), "f32"),))


@pytest.mark.parametrize(("kept", "expected"), [(frozenset({1, 5}), 3), (frozenset(range(6)), 5)])
def test_strict_mode_frees_buffers_after_their_last_use(
    kept: frozenset[int], expected: int
) -> None:
    program = unary()
    calls = tuple(Call(graph=program, inputs=(i,), outputs=(i + 1,)) for i in range(1, 5))
    trace = StepTrace(calls=calls, live_before={1: Buffer(size_bytes=MIB)}, live_after=kept)
    assert strict_memory(trace, {program: 0}, USABLE).peak_bytes == expected * MIB


def test_strict_mode_knows_reused_memory() -> None:
    program = unary()
    call = Call(graph=program, inputs=(1,), outputs=(2,), reuse=((0, 0),))
    trace = StepTrace(
        calls=(call,),
        live_before={1: Buffer(size_bytes=MIB, kind="parameter")},
        live_after=frozenset({2}),
    )
    estimate = strict_memory(trace, {program: 0}, USABLE)
    assert estimate.peak_bytes == MIB
    assert dict(estimate.by_kind)["parameter"] == MIB
