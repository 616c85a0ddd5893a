"""Programs on a simulated chip: its clock, its HBM, what they say, and values that do not exist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch

from torchtpu import config, device, targets
from torchtpu.targets import TargetError

PROGRAM = """
import json, os, torch
from torchtpu.perf_model.roofline import program
from torchtpu.sim.device import SimDevice

found = {"below the roofline": 0, "launches": 0}
launch = SimDevice.launch_program

def checked(self, graph):
    start = max(self.clock.host_ps, self.clock.device_free_ps)
    end = launch(self, graph)
    total = program(graph, self.chip).total
    least_s = max(
        total.matmul_flops / self.chip.peak_flops_per_s(),
        total.hbm_bytes / self.chip.hbm_bytes_per_s,
    )
    found["launches"] += 1
    found["below the roofline"] += (end - start) * 1e-12 < least_s
    return end

SimDevice.launch_program = checked

def train(mode):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    model = model.to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    forward = torch.compile(model, dynamic=False) if mode == "compiled" else model

    def step(rows):
        loss = forward(torch.ones(rows, 8, device="tpu")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    times, losses = [], []
    for _ in range(3):
        start, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
        start.record()
        losses.append(step(4))
        end.record()
        times.append(start.elapsed_time(end))
    try:
        step(1 << 30).item()
        error = None
    except torch.OutOfMemoryError as caught:
        error = str(caught)
    losses.append(step(4))
    return {"ms": times, "losses": [x.item().hex() for x in losses], "error": error}

for mode in torch.tpu.EagerMode.DEFER_NEVER, torch.tpu.EagerMode.DEFER_AND_FUSE:
    torch.tpu.eager_mode = mode
    found[mode.value] = train(mode.value)

tall = torch.ones(1 << 16, 8, device="tpu")
torch.tpu.synchronize()
try:
    (tall @ tall.t()).sum().item()
except torch.OutOfMemoryError as caught:
    found["temporaries"] = str(caught)

torch.tpu.synchronize()
torch.tpu.reset_peak_memory_stats()
before = torch.tpu.memory_allocated()
square = torch.ones(512, 512, device="tpu")
held = torch.tpu.memory_allocated() - before
half = (square.exp() @ square.sin()).sum()
found["held"], found["peak"] = held, torch.tpu.max_memory_allocated() - before
about = torch.tpu.get_device_properties()
found["about"] = [about.name, about.total_memory, about.topology, about.simulated]
found["free"] = torch.tpu.mem_get_info()[0] + torch.tpu.memory_allocated()
both = torch.tpu.memory_stats(), torch.accelerator.memory_stats()
found["simulated"] = [stats["simulated"] for stats in both]
torch.set_float32_matmul_precision("medium")
fine = torch.full((1, 1), 1 + 2**-12, device="tpu")
found["matmul"] = (fine @ fine).item()
found["compiles"] = torch.tpu._get_cache_stats()["num_compilations"]
torch.set_float32_matmul_precision("highest")
if "COMPILED" in os.environ:
    found["compiled"] = train("compiled")
print(json.dumps(found))
"""


def run(code: str, *arguments: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [*done.stderr.splitlines(), *done.stdout.splitlines()]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The same program in two processes, the second with what the first has compiled."""
    environment = {
        "TORCHTPU_TARGET": "sim:v5e:2x2",
        "TORCHTPU_IMITATE_TPU_MATMUL": "1",
        "TORCHTPU_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "sim",
    }
    first = run(PROGRAM, **environment, COMPILED="1")
    return json.loads(first[-1]), json.loads(run(PROGRAM, **environment)[-1])


def test_the_same_program_gives_the_same_picosecond_also_from_the_cache(
    twice: tuple[Any, Any],
) -> None:
    cold, warm = twice
    assert warm["compiles"] == 0 < cold["compiles"]
    same = set(warm) - {"compiles", "launches"}
    assert {name: cold[name] for name in same} == {name: warm[name] for name in same}


def test_no_launch_is_faster_than_the_roofline(twice: tuple[Any, Any]) -> None:
    assert twice[0]["launches"] > 100
    assert twice[0]["below the roofline"] == 0


def test_modes_differ_in_time_and_not_in_values(twice: tuple[Any, Any]) -> None:
    ms = {mode: twice[0][mode]["ms"][-1] for mode in ("strict", "fused", "compiled")}
    assert 0 < ms["fused"] < ms["strict"]
    assert 0 < ms["compiled"] < ms["strict"]
    strict, fused, compiled = (
        [float.fromhex(loss) for loss in twice[0][mode]["losses"]]
        for mode in ("strict", "fused", "compiled")
    )
    assert fused == pytest.approx(strict, rel=1e-6)
    assert compiled == pytest.approx(strict, rel=1e-6)


def test_training_goes_on_after_memory_ran_out_in_every_mode(twice: tuple[Any, Any]) -> None:
    for mode in ("strict", "fused", "compiled"):
        error, losses = twice[0][mode]["error"], twice[0][mode]["losses"]
        assert error.startswith("[sim v5e] out of HBM: requested 32.00 GiB"), mode
        assert "The largest live tensors:\n  " in error
        assert "2 x float32 [8, 8] = 512 B, Sequential.*.weight" in error
        values = [float.fromhex(loss) for loss in losses]
        assert values == sorted(values, reverse=True), mode
        assert len(set(values)) == 4


def test_temporaries_of_programs_count(twice: tuple[Any, Any]) -> None:
    text = twice[0]["temporaries"]
    assert "16.00 GiB for temporaries:\n  1 x 65536x65536xf32 = 16.00 GiB each" in text
    assert twice[0]["held"] == 512 * 512 * 4
    assert twice[0]["peak"] > 2 * twice[0]["held"]


def test_what_is_simulated_says_so(twice: tuple[Any, Any]) -> None:
    name, total, topology, simulated = twice[0]["about"]
    assert (name, topology, simulated) == ("TPU v5e (simulated)", "2x2", True)
    assert twice[0]["free"] == total
    assert twice[0]["simulated"] == [1, 1]


def test_a_matmul_has_the_precision_of_one_pass(twice: tuple[Any, Any]) -> None:
    assert twice[0]["matmul"] == 1.0  # in float32 it is 1 + 2**-11


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("v99:2x2", r"unknown chip 'v99'.*expected one of .*v5e"),
        ("v5e:3x5", r"sim:v5e:3x5\].*no slice 3x5, expected one of 1x1, 2x2"),
        ("v5e:two", r"sim:v5e:two\].*two"),
        ("8i", r"8i: an estimate needs"),
    ],
)
def test_a_wrong_chip_or_topology_lists_what_there_is(option: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        targets.create(f"sim:{option}", targets.Settings(numerics=False))


ABSTRACT = """
import sys, torch
from torchtpu.cli import perf
print("exit code", perf.main(["estimate", sys.argv[1]]))
x = torch.ones(4, 4, device="tpu")
wide = torch.nn.Linear(1 << 15, 1 << 15, device="tpu")
kept = [wide(torch.ones(8, 1 << 15, device="tpu")) for _ in range(2)]
torch.tpu.synchronize()
print(torch.tpu.memory_allocated() >> 30, "GiB")
for use in (
    lambda: x.sum().item(),
    lambda: x.cpu(),
    lambda: repr(x),
    lambda: bool(x.all()),
    lambda: x.nonzero(),
    lambda: x[x > 0],
    lambda: torch.unique(x),
    lambda: x.tensor_split(torch.arange(2).to("tpu") + 1),
    lambda: kept.append(torch.ones(1 << 33, device="tpu")),
    lambda: x.tensor_split(torch.arange(2).to("tpu")),
):
    try:
        use()
        torch.tpu.synchronize()
        print("no error")
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
print((x + 1).shape)
"""


def test_values_that_do_not_exist_are_errors_that_name_line_and_option(tmp_path: Path) -> None:
    script = tmp_path / "mask.py"
    script.write_text("import torch\nx = torch.ones(4, device='tpu')\nx[x > 0].sum()\n")
    said = run(ABSTRACT, str(script))
    start = said.index("exit code 2")
    estimate, weights, *rest = "\n".join(said[:start]), *said[start + 1 :]
    assert "the script raised at mask.py:3: DataDependentShapeError" in estimate
    assert "Traceback" not in estimate
    assert weights == "4 GiB"
    reads, shapes = rest[:4], rest[4:8]
    for line in reads:
        assert "is read on the host at <string>:" in line
    for line in shapes:
        assert line.startswith("DataDependentShapeError [")
        assert "the shape of its result depends on values at <string>:" in line
    for line in reads + shapes:
        assert "TORCHTPU_SIM_NUMERICS" in line
    assert rest[8].startswith("OutOfMemoryError [sim v6e] out of HBM: requested 32.00 GiB")
    assert rest[9:] == ["no error", "torch.Size([4, 4])"]  # what the host has sent is known


PASSES = {
    "default": ((0, 0),),
    "high": ((0, 0), (0, 1), (1, 0)),
    "highest": ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)),
}


def bfloat16_parts(value: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    parts = []
    for _ in range(3):
        part = value.astype(ml_dtypes.bfloat16).astype(np.float32)
        parts.append(part.astype(np.float64))
        value = value - part
    return parts


@pytest.mark.parametrize("precision", PASSES)
@pytest.mark.parametrize("convolution", [False, True])
def test_float32_products_are_sums_of_products_of_bfloat16_parts(
    precision: str, convolution: bool
) -> None:
    target = targets.create("cpu", targets.Settings(imitate_tpu_matmul=True))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 256)).astype(np.float32)
    y = rng.standard_normal((256, 8)).astype(np.float32)

    def product(a: Any, b: Any) -> Any:
        if not convolution:
            return jax.lax.dot(a, b, precision=precision)
        kernel = b.T.reshape(8, 256, 1, 1)
        image = a.reshape(16, 256, 1, 1)
        made = jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID", precision=precision)
        return made.reshape(16, 8)

    traced = jax.jit(product).trace(x, y)
    module = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    executable = target.compile(module, [((16, 8), np.dtype(np.float32))])
    got = target.get(executable.run([target.put(x), target.put(y)])[0])
    xs, ys = bfloat16_parts(x), bfloat16_parts(y)
    expected = sum(xs[i] @ ys[j] for i, j in PASSES[precision])
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-5)
    error = np.abs(got - x.astype(np.float64) @ y).max()
    assert error < {"default": 0.5, "high": 1e-3, "highest": 3e-5}[precision]
    assert error > {"default": 0.01, "high": 1e-4, "highest": 0}[precision]


def test_infinities_stay_infinities_and_bfloat16_and_float64_stay_as_they_are() -> None:
    made = {
        imitate: targets.create("cpu", targets.Settings(imitate_tpu_matmul=imitate))
        for imitate in (False, True)
    }
    assert made[False].identity() != made[True].identity()
    x = np.array([[np.inf, 1.5], [1.0, np.nan]], np.float32)
    for dtype in (np.float32, ml_dtypes.bfloat16, np.float64):
        results = []
        for target in made.values():
            with jax.enable_x64(True):
                value = x.astype(dtype)
                traced = jax.jit(lambda a: jax.lax.dot(a, a, precision="highest")).trace(value)
                module = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
            executable = target.compile(module, [((2, 2), np.dtype(dtype))])
            results.append(target.get(executable.run([target.put(value)])[0]).astype(np.float64))
        np.testing.assert_array_equal(results[0], results[1])


def test_the_device_is_available_where_its_target_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.tpu.is_available()
    monkeypatch.setattr(device, "is_initialized", lambda: False)
    monkeypatch.setattr(targets, "absent", lambda spec: "no TPU" if spec == "tpu" else "")
    with config.override(target="tpu"):
        assert not torch.tpu.is_available()
        assert torch.tpu.device_count() == 0
    with config.override(target="sim:v6e"):
        assert torch.tpu.is_available()


def test_memory_of_target_cpu_is_the_hosts() -> None:
    free, total = targets.create("cpu").info(), os.sysconf("SC_PHYS_PAGES")
    assert free.memory_bytes == total * os.sysconf("SC_PAGE_SIZE")
