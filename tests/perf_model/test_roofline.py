"""Step estimates: against published measurements, and that their parts add up."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import pytest

from tests.perf_model.jax_programs import adam, graph, matmul, spec
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.program import Graph, GraphBuilder, Provenance
from torchtpu.perf_model.roofline import (
    MODES,
    estimate_step,
    estimate_steps,
    program_time_s,
)
from torchtpu.perf_model.trace import Buffer, Call, StepTrace

V6E, V5E, TPU7X = (chips.load(name) for name in ("v6e", "v5e", "tpu7x"))

# Measured device times in us of bfloat16 GEMMs n x n x n, per core on TPU7x.
# Source: github.com/AI-Hypercomputer/tpu-recipes@c8cfe2f6, microbenchmarks/README.md (v6e) and
# microbenchmarks/ironwood/README.md (TPU7x).
MEASURED_GEMM_US = [
    ("v6e", 8192, 1328.8),
    ("tpu7x", 128, 1.62),
    ("tpu7x", 512, 2.55),
    ("tpu7x", 1024, 6.14),
    ("tpu7x", 2048, 25.29),
    ("tpu7x", 4096, 153.92),
    ("tpu7x", 16384, 9257.8),
    ("tpu7x", 32768, 73578.0),
]
# Measured HBM copies (read and write) in GB/s per core: same source, ironwood/hbm/hbm.md and
# README.md.
MEASURED_COPY = [
    ("tpu7x", 2**21, 1379.3),
    ("tpu7x", 2**24, 2757.3),
    ("tpu7x", 2**28, 3167.1),
    ("tpu7x", 2**33, 3210.5),
    ("v6e", 2**25, 1359.6),
]
# Cycles that libtpu 0.0.50.1 estimates for bfloat16 GEMMs (M, K, N), compiled ahead of time.
COMPILER_CYCLES = [
    ("v5e", (4096, 4096, 4096), 1083068),
    ("v5e", (2048, 2048, 2048), 143032),
    ("v5e", (8192, 8192, 8192), 9557312),
    ("v5e", (512, 4096, 4096), 142499),
    ("v5e", (1024, 4096, 4096), 277667),
    ("v5p", (4096, 4096, 4096), 544925),
    ("v5p", (8192, 4096, 4096), 1078890),
    ("v4", (4096, 4096, 4096), 1176804 / 2),
    ("v3", (4096, 4096, 4096), 2201438),
]


@pytest.mark.parametrize(("name", "n", "measured_us"), MEASURED_GEMM_US)
def test_gemms_against_measurements(
    name: str, n: int, measured_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "v6e":  # as it was measured
        monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=65536")
    predicted = program_time_s(matmul(n, n, n), chips.load(name)) * 1e6
    assert predicted == pytest.approx(measured_us, rel=0.10)


@pytest.mark.parametrize(("name", "size", "gbytes_per_s"), MEASURED_COPY)
def test_copies_against_measurements(name: str, size: int, gbytes_per_s: float) -> None:
    program = graph(lambda x: -x, spec(size // 2, dtype=jnp.bfloat16))
    achieved = 2 * size / program_time_s(program, chips.load(name)) / 1e9
    assert achieved == pytest.approx(gbytes_per_s, rel=0.10)


@pytest.mark.parametrize(("name", "sizes", "cycles"), COMPILER_CYCLES)
def test_gemms_against_the_compilers_estimate(
    name: str, sizes: tuple[int, int, int], cycles: float
) -> None:
    chip = chips.load(name)
    predicted = program_time_s(matmul(*sizes), chip) * chip.clock_hz
    assert predicted == pytest.approx(cycles, rel=0.25)


def test_a_decode_gemm_is_bound_by_its_weights() -> None:
    time_s = program_time_s(matmul(8, 8192, 8192), V6E)
    weights_s = 2 * 8192 * 8192 / V6E.hbm_bytes_per_s
    assert 1.0 < time_s / weights_s < 1.3


LAYERS = 4
MATMUL = matmul(8192, 4096, 4096)
GELU = graph(jax.nn.gelu, spec(8192, 4096, dtype=jnp.bfloat16))
ADAM = graph(adam, *[spec(1024, 1024)] * 4)


def step(name: str = "step", optimizer: bool = True) -> StepTrace:
    """A few matmul and GELU layers, then an Adam update whose memory is reused."""
    live = {0: Buffer(size_bytes=8192 * 4096 * 2, kind="input")}
    calls: list[Call] = []
    x, fresh = 0, 1

    def layer(graph: Graph, inputs: tuple[int, ...], op: str, line: int, module: str) -> int:
        where = Provenance(op=op, module=module, source=f"train.py:{line}")
        calls.append(Call(graph=graph, inputs=inputs, outputs=(fresh,), provenance=where))
        return fresh

    for number in range(LAYERS):
        weight, fresh = fresh, fresh + 1
        live[weight] = Buffer(size_bytes=4096 * 4096 * 2, kind="parameter")
        hidden = layer(MATMUL, (x, weight), "aten::mm", 10, f"model.layers.{number}.mlp")
        fresh += 1
        x = layer(GELU, (hidden,), "aten::gelu", 11, f"model.layers.{number}.act")
        fresh += 1
    after = set(live) | {x}
    if optimizer:
        old = tuple(range(fresh, fresh + 4))
        kinds = ("parameter", "gradient", "optimizer_state", "optimizer_state")
        live |= {b: Buffer(size_bytes=2**22, kind=k) for b, k in zip(old, kinds, strict=True)}
        new = tuple(range(fresh + 4, fresh + 7))
        where = Provenance(op="aten::_fused_adam_", source="train.py:20")
        reuse = ((0, 0), (1, 2), (2, 3))
        calls.append(Call(graph=ADAM, inputs=old, outputs=new, reuse=reuse, provenance=where))
        after |= set(new)
    return StepTrace(calls=tuple(calls), live_before=live, live_after=frozenset(after), name=name)


@pytest.mark.parametrize("mode", MODES)
def test_the_parts_of_an_estimate_add_up(mode: str) -> None:
    estimate = estimate_step(step(), V6E, mode)
    assert sum(estimate.shares.values()) == pytest.approx(1)
    assert sum(op.share for op in estimate.dearest) == pytest.approx(1, abs=0.1)
    assert estimate.matmul_flops == LAYERS * 2 * 8192 * 4096 * 4096
    assert estimate.mfu == pytest.approx(estimate.matmul_flops / estimate.time_s / 918e12)
    assert estimate.achieved_flops_per_s <= estimate.attainable_flops_per_s <= 918e12
    assert estimate.achieved_bytes_per_s <= estimate.attainable_bytes_per_s == 1638e9
    assert sum(size for _, size in estimate.memory.by_kind) == estimate.memory.peak_bytes
    assert not estimate.unmodelled


def test_fusing_a_step_saves_traffic_launches_and_time() -> None:
    fused, strict = (estimate_step(step(), V6E, mode) for mode in MODES)
    assert fused.time_s < strict.time_s
    assert fused.hbm_bytes < strict.hbm_bytes
    assert fused.matmul_flops == strict.matmul_flops
    assert (fused.programs, strict.programs) == (1, 2 * LAYERS + 1)
    assert fused.memory.peak_bytes <= strict.memory.peak_bytes


def test_layers_are_added_up_under_one_row() -> None:
    top = estimate_step(step(), V6E, "strict").dearest[0]
    assert (top.op, top.module, top.source) == ("aten::mm", "model.layers.*.mlp", "train.py:10")
    assert (top.count, top.bound) == (LAYERS, "mxu")


def test_ops_of_a_compiled_program_keep_their_own_origin() -> None:
    builder = GraphBuilder()
    x = builder.input((4096, 4096), "bf16")
    for op in ("aten::mm", "aten::linear"):
        x = builder.op(
            "dot_general",
            (x, x),
            (4096, 4096),
            "bf16",
            provenance=Provenance(op=op, module="m", source="t.py:1"),
            lhs_contract=(1,),
            rhs_contract=(0,),
        )
    call = Call(graph=builder.build((x,)), inputs=(0,), outputs=(1,))
    trace = StepTrace(
        calls=(call,), live_before={0: Buffer(size_bytes=2**25)}, live_after=frozenset({1})
    )
    for mode in MODES:
        names = {op.op for op in estimate_step(trace, V6E, mode).dearest}
        assert names == {"aten::mm", "aten::linear"}


def test_memory_against_the_capacity() -> None:
    live = {0: Buffer(size_bytes=20 * 2**30, kind="parameter")}
    trace = StepTrace(calls=(), live_before=live, live_after=frozenset({0}))
    assert estimate_step(trace, V6E).memory.fits
    missing = estimate_step(trace, V5E).memory
    assert not missing.fits
    assert missing.headroom_bytes == pytest.approx(-4.25 * 2**30)


def test_updated_parameters_take_over_their_memory() -> None:
    trace = step()
    with_reuse = estimate_step(trace, V6E, "strict").memory.peak_bytes
    live = sum(buffer.size_bytes for buffer in trace.live_before.values())
    activations = 2 * 8192 * 4096 * 2
    assert with_reuse <= live + activations + 2**20


def test_many_small_programs_wait_for_the_host() -> None:
    tiny = graph(lambda x: x + 1, spec(8))
    calls = tuple(Call(graph=tiny, inputs=(i,), outputs=(i + 1,)) for i in range(1000))
    trace = StepTrace(
        calls=calls, live_before={0: Buffer(size_bytes=32)}, live_after=frozenset({1000})
    )
    strict = estimate_step(trace, V6E, "strict")
    assert strict.bound == "launch"
    assert strict.time_s == pytest.approx(1000 * 30e-6)
    assert estimate_step(trace, V6E, "fused").time_s < 10e-6


def test_equal_steps_are_estimated_once() -> None:
    first, second, third = estimate_steps([step("a"), step("b"), step("c", optimizer=False)], V6E)
    assert first is second
    assert third.time_s < first.time_s


def test_a_loop_costs_its_trips() -> None:
    def run(length: int) -> float:
        def scan(x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=length)[0]

        return program_time_s(graph(scan, spec(2048, 2048), spec(2048, 2048)), V6E)

    assert run(20) == pytest.approx(10 * run(2), rel=0.05)


def test_an_empty_step_is_no_error() -> None:
    trace = StepTrace(calls=(), live_before={}, live_after=frozenset())
    for mode in MODES:
        assert estimate_step(trace, V6E, mode).time_s == 0


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="unknown mode, expected one of fused, strict"):
        estimate_step(step(), V6E, "lazy")
    with pytest.raises(chips.IncompleteChip, match="8i"):
        estimate_step(step(), chips.load("8i"))


def test_a_long_step_is_estimated_in_seconds() -> None:
    trace = step()
    calls = trace.calls
    count = 0
    many: list[Call] = []
    for _ in range(1000):
        names: dict[int, int] = {}
        for call in calls:
            inputs = tuple(names.get(i, i) for i in call.inputs)
            count += len(call.outputs)
            outputs = tuple(1_000_000 + count + i for i in range(len(call.outputs)))
            names.update(zip(call.outputs, outputs, strict=True))
            many.append(Call(graph=call.graph, inputs=inputs, outputs=outputs))
    long = StepTrace(
        calls=tuple(many), live_before=trace.live_before, live_after=frozenset(outputs)
    )
    assert sum(len(call.graph.ops) for call in many) > 50_000
    begin = time.process_time()
    estimate_step(long, V6E)
    assert time.process_time() - begin < 12
