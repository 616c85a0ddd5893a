"""The benchmarks run, and write the form that tools read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import bars, collectives, dispatch, memory, modes, ways
from benchmarks.models import CASES
from tests.models import DEVICE


def test_dispatch_writes_every_op_and_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dispatch.json"
    with_tpu = [] if DEVICE == "tpu" else ["--no-tpu"]
    arguments = ["--count", "20", "--repeats", "2", "--json", str(file), *with_tpu]
    monkeypatch.setattr(sys, "argv", ["dispatch.py", *arguments])
    dispatch.main()
    results = json.loads(file.read_text())
    eager = [*dispatch.EAGER_MODES, dispatch.RECORDING] if DEVICE == "tpu" else []
    assert set(results) == {"add", "mm"}
    for times_us in results.values():
        assert set(times_us) == {*eager, "jax.jit", "torch cpu"}
        assert all(us > 0 for us in times_us.values())
    assert "us per op, 128x128 float32" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_reads_from_the_warm_step_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "WARM_STEPS", 2)
    readings = memory.train(DEVICE, steps=7, every=3)
    assert [step for step, _ in readings] == [2, 5, 7]
    assert all(size_bytes > 2**20 for _, size_bytes in readings)


@pytest.mark.skipif(DEVICE != "tpu", reason="collectives of device tpu")
def test_collectives_are_measured_beside_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "collectives.json"
    arguments = ["--quick", "--rounds", "1", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["collectives.py", *arguments])
    collectives.main()
    found = json.loads(file.read_text())
    assert set(found) == {*collectives.OPS, collectives.TRAINING}
    for sizes in found.values():
        assert all(us > 0 for times in sizes.values() for us in times.values())
    assert capsys.readouterr().out.count("all_to_all") == len(found["all_to_all"])


@pytest.mark.skipif(DEVICE != "tpu", reason="modes of device tpu")
def test_modes_are_measured_side_by_side_and_without_those_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "modes.json"
    arguments = ["--quick", "--modes", "fused", "inductor", "torch_cpu", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["modes.py", *arguments])
    monkeypatch.setitem(modes.MODULES, "inductor", "benchmarks.no_such_worker")
    modes.main()
    found = json.loads(file.read_text())["mlp"]
    assert list(found) == ["fused", "torch_cpu"]
    for mode in found.values():
        times = ("train_ms", "infer_ms", "first_step_s", "warm_first_step_s", "peak_rss_mib")
        assert all(mode[name] > 0 for name in times)
        assert bars.loss_error(mode["losses"], found["torch_cpu"]["losses"]) < 1e-4
        assert set(mode["late_compiles"].values()) == {0}
    assert found["fused"]["compiles"] > 0
    out = capsys.readouterr().out
    assert "mlp  inductor: not measured: process ended with 1" in out
    assert "PASS  mlp  late compiles" in out


def _measured(ms: float, late: int = 0, losses: tuple[float, ...] = (1.0, 0.5)) -> dict[str, Any]:
    return {
        "train_rounds_ms": [ms, 2 * ms, 10 * ms],
        "first_step_s": 4.0,
        "warm_first_step_s": 0.8,
        "warm_compiles": 0,
        "late_compiles": {"constant": late},
        "losses": list(losses),
    }


def test_bars_compare_round_by_round() -> None:
    slow, fast = _measured(10.0), _measured(6.0)
    assert bars.ratio(fast, slow) == pytest.approx(0.6)
    lines = bars.check({"mlp": {"strict": slow, "fused": fast}})
    assert any(line.startswith("PASS  mlp  training: fused / strict") for line in lines)
    assert any(line.startswith("PASS  mlp  first step: fused warm / cold") for line in lines)
    assert any("trainer / jax" in line and "not measured" in line for line in lines)
    lines = bars.check({"mlp": {"strict": fast, "fused": slow}})
    assert any(line.startswith("FAIL  mlp  training: fused / strict") for line in lines)


def test_bars_fail_for_late_compiles_and_for_other_losses() -> None:
    wrong = _measured(1.0, late=2, losses=(1.0, 0.6))
    lines = bars.check({"gpt": {"torch_cpu": _measured(1.0), "fused": wrong}})
    failed = [line.split("  ")[2] for line in lines if line.startswith("FAIL")]
    assert "late compiles: fused, constant loop" in failed
    assert "losses: fused beside torch_cpu" in failed
    nan = _measured(1.0, losses=(1.0, float("nan")))
    assert bars.loss_error(nan["losses"], [1.0, 0.5]) == float("inf")


@pytest.mark.parametrize("model", list(CASES))
def test_the_hand_written_models_are_the_same_mathematics(model: str) -> None:
    jax, torch_ = ways.make(model, "jax"), ways.make(model, "torch_cpu")
    losses = [(float(jax.step()), float(torch_.step())) for _ in range(3)]
    for way in (jax, torch_):
        way.schedule(0.0)  # moves nothing: the next loss of this batch is that of step 3's weights
    losses += [(float(jax.step()), float(torch_.step())) for _ in range(2)]
    found, expected = zip(*losses, strict=True)
    assert bars.loss_error(list(found), list(expected)) < 1e-5
    np.testing.assert_allclose(np.asarray(jax.infer()), torch_.infer(), rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(DEVICE != "tpu", reason="a mesh of device tpu")
def test_a_step_over_four_devices_beside_jax(tmp_path: Path) -> None:
    file = tmp_path / "spmd.json"
    script = Path(ways.__file__).with_name("spmd.py")
    asked = [sys.executable, str(script), "--steps", "1", "--rounds", "1", "--json", str(file)]
    made = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert "PASS losses of 5 steps agree" in made.stdout, made.stderr
    assert set(json.loads(file.read_text())) == {"whole step", "fused", "jax.jit by hand"}
