"""Programs in the TPU compiler: what it says of them, sharded ones, and what is refused before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchtpu
from torchtpu.aot import compiling, shardings
from torchtpu.compiler.whole_step import WholeStep
from torchtpu.errors import TpuError
from torchtpu.program import ArrayType
from torchtpu.targets import TargetError

needs_libtpu = pytest.mark.usefixtures("libtpu")
WIDTH = 256


class Step:
    """A training step of two layers."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.model.to("tpu")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.x = torch.zeros(64, WIDTH, device="tpu")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def compile(self, **how: Any) -> Any:
        return torchtpu.aot_compile(
            self, (self.x,), modules=(self.model,), optimizers=(self.optimizer,), **how
        )

    @property
    def weight_bytes(self) -> int:
        return sum(4 * p.numel() for p in self.model.parameters())


@needs_libtpu
def test_a_module(tmp_path: Path) -> None:
    module = nn.Linear(WIDTH, 128, device="tpu")
    x = torch.zeros(64, WIDTH, device="tpu")
    report = torchtpu.aot_compile(module, (x,), path=tmp_path / "executable")
    assert (report.topology, report.devices, report.collectives) == ("v6e:1x1", 1, {})
    assert report.argument_bytes == 4 * (WIDTH * 128 + 128 + 64 * WIDTH)
    assert report.output_bytes >= 4 * 64 * 128
    assert report.flops >= 2 * 64 * WIDTH * 128
    assert report.peak_bytes >= report.argument_bytes
    assert (tmp_path / "executable").stat().st_size > 1000


@needs_libtpu
def test_a_training_step_takes_over_the_memory_of_its_state() -> None:
    step = Step()
    report = step.compile(topology="v5e:2x2")
    assert report.argument_bytes > 3 * step.weight_bytes  # and two moments
    assert report.alias_bytes > 3 * step.weight_bytes
    assert not step.optimizer.state  # nothing has happened
    assert all(p.grad is None for p in step.model.parameters())
    step(step.x)
    assert all(torch.isfinite(p.cpu()).all() for p in step.model.parameters())


@needs_libtpu
def test_a_step_sharded_over_two_axes() -> None:
    alone = Step().compile(topology="v6e:2x2")
    report = Step().compile(
        topology="v6e:2x2",
        mesh={"data": 2, "model": 2},
        shardings={
            "args.0": ("data",),
            r"0\.(weight|bias)(\.exp_.*)?": ("model",),
            r"2\.weight(\.exp_.*)?": (None, "model"),
        },
    )
    assert report.devices == 4
    assert report.collectives["all-reduce"] > 0
    assert report.argument_bytes < 0.6 * alone.argument_bytes


@needs_libtpu
def test_weights_that_this_machine_need_not_hold() -> None:
    code = (
        "import resource, torch, torchtpu\n"
        "layer = torch.nn.Linear(60_000, 60_000, device='tpu', dtype=torch.bfloat16)\n"
        "x = torch.zeros(8, 60_000, device='tpu', dtype=torch.bfloat16)\n"
        "report = torchtpu.aot_compile(layer, (x,))\n"
        "print(report.argument_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    abstract = {"TORCHTPU_TARGET": "sim:v6e", "TORCHTPU_SIM_NUMERICS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | abstract, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    on_device, here = map(int, done.stdout.split())
    assert on_device > 2 * 60_000**2
    assert here < on_device / 4


@needs_libtpu
def test_mistakes_that_the_compiler_finds() -> None:
    with pytest.raises(TargetError, match="topology 'v99:2x2'"):
        torchtpu.aot_compile(nn.ReLU(), (torch.zeros(8, device="tpu"),), topology="v99:2x2")
    with pytest.raises(TargetError, match=r"a mesh of 3 has 3 devices, expected 1 or the 4"):
        torchtpu.aot_compile(
            nn.ReLU(), (torch.zeros(9, device="tpu"),), topology="v6e:2x2", mesh={"data": 3}
        )


def test_a_library_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libtpu.so"
    library.write_text("no library")
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    with pytest.raises(TargetError, match=r"\[tpu compiler\] v6e:1x1: "):
        torchtpu.aot_compile(nn.ReLU(), (torch.zeros(8, device="tpu"),))


def test_names_of_inputs() -> None:
    step = Step()
    with WholeStep(step, (step.model,), (step.optimizer,)).traced(step.x) as traced:
        names = compiling._names(traced.inputs, (step.x,), (step.model,), (step.optimizer,))
    assert {"args.0", "0.weight", "2.bias", "0.weight.exp_avg", "2.weight.step"} <= set(names)
    tensors = [n for n, b in zip(names, traced.inputs, strict=True) if b is not None]
    assert "constant" not in tensors
    assert len(set(tensors)) == len(tensors)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"shardings": {"args.0": ("data",)}}, "shardings need a mesh"),
        ({"mesh": {"data": 0}}, "axis 'data' has size 0, expected 1 or more"),
        ({"mesh": {"data": 2}, "shardings": {"args.0": ("rows",)}}, "unknown axis 'rows'"),
        ({"mesh": {"data": 2}, "shardings": {"none": ("data",)}}, "no input is called 'none'"),
        ({"mesh": {"data": 5}, "shardings": {"args.0": ("data",)}}, "64 is no multiple of the 5"),
        ({"mesh": {"data": 2}, "shardings": {"0.bias": (None, "data")}}, "more dims"),
    ],
)
def test_shardings_that_cannot_be(how: dict[str, Any], text: str) -> None:
    with pytest.raises(TpuError, match=text):
        Step().compile(**how)


def test_the_first_pattern_that_matches_counts() -> None:
    own = shardings.sharding(
        {"a": 2, "b": 4}, {r"w\.0": (("a", "b"),), r"w\..*": (None, "b"), ".*": ()}
    )
    types = [ArrayType((8, 4), torch.zeros(0).numpy().dtype)] * 3
    assert own.of(["w.0", "w.1", "x"], types) == [(("a", "b"),), (None, "b"), ()]


def test_a_module_of_another_device() -> None:
    with pytest.raises(TpuError, match=r"weight is on cpu, expected tpu: .to\('tpu'\)"):
        torchtpu.aot_compile(nn.Linear(2, 2), (torch.zeros(2, 2),))
