"""The benchmarks run, and write the form that tools read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import dispatch, memory
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
    eager = dispatch.EAGER_MODES if DEVICE == "tpu" else {}
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
