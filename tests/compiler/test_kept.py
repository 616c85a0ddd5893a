"""What AOTAutograd made of a graph is kept for the next process; a stale one is made anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = """
import json, sys
import torch
from torch._dynamo.utils import counters
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).to("tpu")
x = torch.linspace(-1, 1, 12).reshape(3, 4).to("tpu")
loss = torch.compile(model, backend="tpu")(x).square().mean()
loss.backward()
stats = torch.tpu._get_cache_stats()
print(json.dumps({
    "loss": loss.item(),
    "gradient": model[0].weight.grad.cpu().sum().item(),
    "hits": counters["aot_autograd"]["autograd_cache_hit"],
    "bypasses": counters["aot_autograd"]["autograd_cache_bypass"],
    "compiles": stats["num_compilations"],
    "traces": stats["num_traces"],
}))
"""

_OTHER_SOURCES = """
from torchtpu.cache import environment
environment.sources = lambda: "other"
"""


def run(folder: Path, script: str = _SCRIPT) -> dict[str, Any]:
    env = {
        **os.environ,
        "TORCHTPU_TARGET": "cpu",
        "TORCHTPU_CACHE_DIR": str(folder / "programs"),
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "default",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "graphs"),
    }
    command = [sys.executable, "-W", "error::UserWarning", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.timeout(240)
def test_the_second_process_traces_and_compiles_nothing(tmp_path: Path) -> None:
    cold, warm = run(tmp_path), run(tmp_path)
    assert (cold["hits"], cold["compiles"] > 0) == (0, True)
    assert (warm["hits"], warm["compiles"], warm["traces"]) == (1, 0, 0)
    assert (warm["loss"], warm["gradient"]) == (cold["loss"], cold["gradient"])
    stale = run(
        tmp_path, "import torchtpu.cache.environment as e; e.sources = lambda: 'other'" + _SCRIPT
    )
    assert stale["hits"] == 0
    assert stale["loss"] == cold["loss"]
