"""The compiler oracle: steps as segments, one module each, and what is made of the answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from torchtpu import config
from torchtpu.oracle import choose, collectives, compiler, memory, modules, segments
from torchtpu.oracle.programs import Programs
from torchtpu.oracle.segments import Segment
from torchtpu.perf_model import bytecode, stablehlo
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.hlo import reader as hlo
from torchtpu.perf_model.program import Graph, Provenance
from torchtpu.perf_model.trace import Buffer, Call, StepTrace
from torchtpu.targets import CompileReport, TargetError, child, compile_batch, tpu_compiler
from torchtpu.targets.compile_batch import Compilation, Job, failed
from torchtpu.targets.tpu_compiler import TpuCompiler

ROOT = Path(__file__).parents[2]
V6E = chips.load("v6e")
SIZE = 64
BYTES = 4 * SIZE * SIZE


def program(function: Callable[..., Any], *types: Any) -> Graph:
    """A graph of which the StableHLO is kept, as target sim makes it."""
    module = jax.jit(function).lower(*types).compiler_ir("stablehlo")
    graph = stablehlo.read(module)
    bytecode.keep(graph, module)
    return graph


def spec(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


class Tracer:
    """Writes a step trace down, call by call."""

    def __init__(self, **before: int) -> None:
        self.names = {name: n for n, name in enumerate(before)}
        self.before = {n: Buffer(size_bytes=size) for n, size in enumerate(before.values())}
        self.calls: list[Call] = []

    def call(self, graph: Graph, *inputs: str, outputs: Sequence[str]) -> None:
        made = [self.names.setdefault(name, len(self.names)) for name in outputs]
        taken = tuple(self.names[name] for name in inputs)
        where = Provenance(op=f"op{len(self.calls)}", module=f"Net.layers.{len(self.calls)}")
        self.calls.append(Call(graph=graph, inputs=taken, outputs=tuple(made), provenance=where))

    def trace(self, *after: str) -> StepTrace:
        return StepTrace(
            calls=tuple(self.calls),
            live_before=self.before,
            live_after=frozenset(self.names[name] for name in after),
        )


MATRIX = spec(SIZE, SIZE)


def layers(count: int) -> StepTrace:
    """x = tanh(x @ w), `count` times, in calls of one op."""
    product, squash = program(jnp.matmul, MATRIX, MATRIX), program(jnp.tanh, MATRIX)
    tracer = Tracer(x0=BYTES, w=BYTES)
    for n in range(count):
        tracer.call(product, f"x{n}", "w", outputs=[f"y{n}"])
        tracer.call(squash, f"y{n}", outputs=[f"x{n + 1}"])
    return tracer.trace("w", f"x{count}")


def test_a_short_step_is_one_segment() -> None:
    (whole,) = segments.segments(layers(3), Programs())
    assert len(whole.units) == 6
    assert (len(whole.inputs), len(whole.outputs), whole.dying) == (2, 1, (0,))


def test_equal_layers_of_a_long_step_are_one_program() -> None:
    parts = segments.segments(layers(400), Programs())
    assert sum(len(p.units) for p in parts) == 800
    assert len({p.key for p in parts}) <= 3
    assert [u.call for p in parts for u in p.units] == list(range(800))


def update(rate: Any, *tensors: Any) -> Any:
    half = len(tensors) // 2
    return [p - rate * g * 2 for p, g in zip(tensors[:half], tensors[half:], strict=True)]


def optimizer_step(count: int) -> StepTrace:
    """An update of a list of matrices and vectors, in two calls, by one learning rate."""
    shapes = [(SIZE, SIZE) if n % 2 else (SIZE,) for n in range(count)]
    types = [spec(), *map(spec_of, shapes), *map(spec_of, shapes)]
    graph = program(update, *types)
    names = [f"p{n}" for n in range(count)], [f"g{n}" for n in range(count)]
    sizes = {
        name: 4 * SIZE ** len(s) for part in names for name, s in zip(part, shapes, strict=True)
    }
    tracer = Tracer(rate=4, **sizes)
    first = [f"a{n}" for n in range(count)]
    tracer.call(graph, "rate", *names[0], *names[1], outputs=first)
    tracer.call(graph, "rate", *first, *names[1], outputs=[f"b{n}" for n in range(count)])
    return tracer.trace(*(f"b{n}" for n in range(count)), *names[1])


def spec_of(shape: tuple[int, ...]) -> Any:
    return spec(*shape)


def test_an_optimizers_step_falls_apart_into_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_WHOLE_OPS", 10)
    parts = segments.segments(optimizer_step(20), Programs())
    assert len(parts) == 20
    assert len({p.key for p in parts}) == 2  # matrices and vectors
    assert all(len(p.units) == 2 for p in parts)
    assert all(len(p.outputs) == 1 for p in parts)
    assert all(len(p.dying) == 1 for p in parts)  # the parameter; the gradient is alive after


def built(part: Segment, programs: Programs) -> Any:
    module = modules.build(part, programs.context)
    assert module.operation.verify()
    return module


def test_a_segment_is_a_module_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Programs()
    (whole,) = segments.segments(layers(3), programs)
    text = str(built(whole, programs))
    assert text.count("func.func private") == 2  # each program once
    assert text.count("call @") == 6
    assert text.count("jax.buffer_donor") == 1
    graph = stablehlo.read(text)
    assert [op.opcode for op in graph.ops if op.opcode != "constant"] == ["dot_general", "tanh"] * 3
    monkeypatch.setattr(segments, "_WHOLE_OPS", 10)
    part = segments.segments(optimizer_step(20), programs)[0]
    assert stablehlo.read(built(part, programs)).outputs


def test_programs_that_call_functions_of_the_same_name() -> None:
    one = program(lambda x: jax.jit(lambda v: jnp.where(v > 0, v, 0.0))(x), MATRIX)
    other = program(lambda x: jax.jit(lambda v: jnp.where(v < 0, v, 1.0))(x), MATRIX)
    tracer = Tracer(x=BYTES)
    tracer.call(one, "x", outputs=["y"])
    tracer.call(other, "y", outputs=["z"])
    programs = Programs()
    (whole,) = segments.segments(tracer.trace("z"), programs)
    graph = stablehlo.read(built(whole, programs))
    directions = [op.text("comparison_direction") for op in graph.ops if op.opcode == "compare"]
    assert directions == ["GT", "LT"]


@pytest.mark.parametrize(
    ("name", "unit"), [("u7/jit(f)/add", 7), ("jit(f)/u12", 12), ("up/u", None), ("", None)]
)
def test_the_unit_of_a_name(name: str, unit: int | None) -> None:
    assert modules.unit_of(name) == unit


def test_a_call_without_stablehlo_stands_alone() -> None:
    trace = layers(2)
    unknown = Graph(types=(), inputs=(), outputs=(), ops=())
    calls = (trace.calls[0], Call(graph=unknown, inputs=(), outputs=()), *trace.calls[1:])
    with_it = StepTrace(calls=calls, live_before=trace.live_before, live_after=trace.live_after)
    parts = segments.segments(with_it, Programs())
    assert [p.compiles for p in parts] == [True, False, True]


def report(**sizes: int) -> CompileReport:
    names = ("argument", "output", "alias", "temporary", "code")
    found = {f"{name}_bytes": sizes.get(name, 0) for name in names}
    return CompileReport(
        topology="v6e:2x2",
        devices=1,
        seconds=1.0,
        flops=0,
        bytes_accessed=0,
        collectives={},
        **found,
    )


def test_the_memory_of_a_step_in_parts() -> None:
    trace = layers(400)
    parts = segments.segments(trace, Programs())
    made = [
        Compilation(report=report(argument=2 * BYTES, output=BYTES, temporary=7)) for _ in parts
    ]
    held = memory.step_memory(trace, parts, made, V6E)
    assert held.estimate.peak_bytes == 3 * BYTES + 7
    assert held.origin == memory.ESTIMATED
    made[1] = Compilation(out_of_memory=True, failure="no room", needed_bytes=2**40)
    refused = memory.step_memory(trace, parts, made, V6E).estimate
    assert not refused.fits
    assert refused.peak_bytes == 2**40


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (17.25G) exceeds available HBM (15.75G).\nmore",
            17.25,
        ),
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: ... (392.00G) exceeds available HBM "
            "(15.75G)",
            392.0,
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 20.50G of 15.75G hbm.",
            20.5,
        ),
    ],
)
def test_no_room_is_an_answer(message: str, needed: float) -> None:
    answer = failed(message)
    assert answer.out_of_memory
    assert answer.needed_bytes == int(needed * 2**30)


def test_any_other_error_is_a_failure() -> None:
    assert failed("INTERNAL: bad\nstack") == Compilation(failure="INTERNAL: bad")


def test_what_ends_the_compiler_is_the_answer_for_its_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(_module: str, listed: str, **_how: Any) -> child.Answer:
        for job in json.loads(Path(listed).read_text()):
            if job["name"] == "b":
                return child.Answer(failure="the process was ended by SIGABRT: F1130 bad")
            compile_batch._write(Path(listed).parent, job["name"], Compilation(report=report()))
        return child.Answer(value=True)

    monkeypatch.setattr(child, "ask", ask)
    jobs = [Job(name=n, topology="v6e:2x2", devices=1, module=b"") for n in "abc"]
    answers = compile_batch.compile_batch(jobs, sys.executable, 10)
    assert [answers[n].report is not None for n in "abc"] == [True, False, True]
    assert "SIGABRT" in answers["b"].failure


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what TPU compiler there is."""

    def set_to(library: str = __file__, needs: tuple[str, ...] = (), **versions: str) -> None:
        known = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"} | versions
        found = TpuCompiler(python=sys.executable, library=library, versions=known, needs=needs)
        monkeypatch.setattr(tpu_compiler, "here", lambda: found)
        monkeypatch.setattr(tpu_compiler, "library", lambda: library)

    return set_to


def test_without_libtpu_the_model_answers(environment: Callable[..., None]) -> None:
    environment(library="")
    assert choose.chosen("", V6E).name == "model"
    with pytest.raises(TargetError, match=r"no libtpu in .*: pip install 'torchtpu\[tpu\]'"):
        choose.chosen("libtpu", V6E)


def test_a_mismatched_libtpu_is_refused(environment: Callable[..., None]) -> None:
    environment(needs=("libtpu==0.0.42.*",), libtpu="0.0.52")
    message = r"libtpu 0\.0\.52 .* but jax 0\.10\.2 needs libtpu ==0\.0\.42\.\*: pip install"
    with pytest.raises(TargetError, match=message):
        choose.chosen("both", V6E)
    assert "libtpu does not work" in choose.chosen("", V6E).notes[0]
    environment(needs=("libtpu==0.0.42.*",))
    assert choose.chosen("", V6E).name == "libtpu"


def test_another_python_that_is_none() -> None:
    with (
        config.override(oracle_python="/no/python"),
        pytest.raises(TargetError, match="TORCHTPU_ORACLE_PYTHON=/no/python does not answer"),
    ):
        choose.chosen("libtpu", V6E)


def test_another_python_is_asked() -> None:
    found = tpu_compiler.of(sys.executable)
    assert found.versions["jax"] == jax.__version__


def test_an_unknown_oracle() -> None:
    with pytest.raises(ValueError, match=r"\[oracle\] expected one of model, libtpu, both"):
        choose.chosen("nobody", V6E)


def test_answers_are_kept_by_program(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment()
    answers = {"a": Compilation(report=report(), hlo="text"), "b": Compilation(failure="abort")}
    asked: list[str] = []

    def compile_(jobs: Sequence[Job], *_: Any) -> dict[str, Compilation]:
        asked.extend(job.name for job in jobs)
        return {job.name: answers[job.name] for job in jobs}

    monkeypatch.setattr(compiler, "compile_batch", compile_)
    programs = Programs()
    built_ones = {
        name: (modules.build(segments.segments(layers(n), programs)[0], programs.context), 1)
        for name, n in (("a", 2), ("b", 3))
    }
    with config.override(cache_dir=str(tmp_path), cache_name="default"):
        for _ in range(2):
            assert compiler.OracleCompiler("v6e:2x2").compile(built_ones) == answers
        assert asked == ["a", "b", "b"]  # a failure is asked for again
        environment(libtpu="0.0.43")
        compiler.OracleCompiler("v6e:2x2").compile({"a": built_ones["a"]})
        assert asked[3:] == ["a"]
        for kept in tmp_path.rglob("*.exe"):
            kept.write_bytes(kept.read_bytes()[:-3])
        compiler.OracleCompiler("v6e:2x2").compile({"a": built_ones["a"]})
        assert asked[4:] == ["a"]  # a damaged file is no answer


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", [(0, 1), (2, 3)]),
        ("[2,2]<=[4]", [(0, 1), (2, 3)]),
        ("[2,2]<=[2,2]T(1,0)", [(0, 2), (1, 3)]),
        ("", [(0, 1, 2, 3)]),
    ],
)
def test_groups_of_a_collective(text: str, groups: list[tuple[int, ...]]) -> None:
    assert collectives.groups(text, 4) == groups


@pytest.mark.parametrize(
    ("line", "size_bytes"),
    [
        ("f32[8,128] all-gather(%x), replica_groups={{0,1,2,3}}, dimensions={0}", 4096),
        ("f32[8,128] all-reduce(%x), replica_groups={{0,1,2,3}}, to_apply=%s", 4096),
        ("f32[2,128] reduce-scatter(%x), replica_groups={{0,1,2,3}}, to_apply=%s", 4096),
        ("f32[2,128] all-to-all(%x), replica_groups={{0,1,2,3}}", 4096),
        ("(f32[2,128], f32[8,128]) all-gather-start(%x), replica_groups={{0,1,2,3}}", 4096),
    ],
)
def test_what_a_collective_exchanges(line: str, size_bytes: int) -> None:
    text = f"HloModule m\n\nENTRY %e (x: f32[]) -> f32[] {{\n  ROOT %c = {line}\n}}\n"
    made = collectives.exchange(hlo.read(text).entry.root, 4)
    assert (made.size_bytes, made.group) == (size_bytes, (0, 1, 2, 3))


SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512))
model.to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(256, 512, device="tpu")
for _ in range(2):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.usefixtures("libtpu")
@pytest.mark.timeout(300)
def test_an_estimate_by_both_oracles(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "torchtpu.cli.perf", "estimate", "--oracle", "both"]
    done = subprocess.run(
        [*command, "--format", "json", str(path)],
        cwd=ROOT,
        env=os.environ | {"TORCHTPU_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    step = json.loads(done.stdout)["steps"][-1]
    assert step["memory"]["origin"] == "libtpu"
    assert step["memory"]["peak_bytes"] > 2 * 4 * 512 * 512
    assert 0.3 < step["model"]["libtpu_over_model_time"] < 3  # a small step stays in VMEM
    origins = {op["op"]: op["origin"] for op in step["dearest_ops"]}
    assert any(origin == "libtpu" for op, origin in origins.items() if "mm" in op)


@pytest.mark.usefixtures("libtpu")
@pytest.mark.timeout(300)
def test_a_program_of_a_whole_topology() -> None:
    code = """
module @m { func.func public @main(%a: tensor<1024x1024xbf16>) -> tensor<1024x1024xbf16> {
    %0 = "stablehlo.all_reduce"(%a) ({
      ^bb0(%x: tensor<bf16>, %y: tensor<bf16>):
        %s = stablehlo.add %x, %y : tensor<bf16>
        stablehlo.return %s : tensor<bf16>
    }) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups =
        dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}
        : (tensor<1024x1024xbf16>) -> tensor<1024x1024xbf16>
    return %0 : tensor<1024x1024xbf16> } }
"""
    job = Job(name="all", topology="v6e:2x2", devices=4, module=code.encode())
    answer = compile_batch.compile_batch([job], sys.executable, 200)["all"]
    (collective,) = hlo.read(answer.hlo).collectives()
    assert collectives.exchange(collective, 4).group == (0, 1)
    assert collective.algorithm["emitter"]
