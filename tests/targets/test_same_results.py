"""Both digit trainings give the same losses on target cpu and on target sim, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAIN = """
import json, sys
sys.path.insert(0, "examples")
import train_digits
import torch
runs = [train_digits.train(model, "tpu", steps=6, quiet=True) for model in ("conv", "vit")]
losses = [x.hex() for run in runs for x in run.losses.tolist()]
print(json.dumps({"losses": losses, "device": torch.tpu.get_device_name()}))
"""


def _train(target: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", TRAIN],
        cwd=ROOT,
        env={**os.environ, "TORCHTPU_TARGET": target},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_cpu_and_sim_agree_bit_for_bit() -> None:
    cpu, sim = _train("cpu"), _train("sim:v5e")
    assert sim["device"] == "TPU v5e (simulated)"
    assert cpu["device"] != sim["device"]
    assert cpu["losses"] == sim["losses"]
