"""A new process that runs known programs neither traces nor compiles, and gets the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import hashlib, json, sys
import jax
import numpy as np
import torch
from torch import nn

events = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))

def digest(*tensors):
    data = b"".join(t.detach().cpu().numpy().tobytes() for t in tensors)
    return hashlib.sha256(data).hexdigest()

torch.manual_seed(0)
results = {}
a = torch.randn(6, 6, device="tpu")
spd = a @ a.mT + 6 * torch.eye(6, device="tpu")
results["cholesky"] = digest(torch.linalg.cholesky(spd))
results["svd"] = digest(*torch.linalg.svd(a))
results["eigh"] = digest(*torch.linalg.eigh(spd))
results["qr"] = digest(*torch.linalg.qr(a))
results["solve"] = digest(torch.linalg.solve(spd, a))
results["fft"] = digest(torch.view_as_real(torch.fft.fft(a)))
results["sort"] = digest(*a.sort(stable=True), *a.topk(2))
results["bfloat16"] = digest((a.bfloat16() * 2).float(), a.long() << 40, a > 0)
results["views"] = digest(a.t()[::2].contiguous(), a.unfold(1, 2, 2).sum(-1))
model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)).to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(2):
    nn.functional.cross_entropy(model(a), torch.tensor([0, 1] * 3, device="tpu")).backward()
    optimizer.step()
results["training"] = digest(*model.parameters())
stats = torch.tpu._get_cache_stats()
stats["trace_events"] = len([e for e in events if "/core/compile" in e])
print(json.dumps({"results": results, "stats": stats}))
"""


def start(folder: Path, target: str, mode: str) -> Any:
    """Run the script on a target with a cache in a folder; return its results and counts."""
    environment = os.environ | {
        "TORCHTPU_TARGET": target,
        "TORCHTPU_MODE": mode,
        "TORCHTPU_CACHE_DIR": str(folder),
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "test",
    }
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("target", "mode"), [("cpu", "strict"), ("sim:v5e", "fused")])
def test_a_second_process_compiles_nothing(tmp_path: Path, target: str, mode: str) -> None:
    cold, warm = (start(tmp_path, target, mode) for _ in range(2))
    assert warm["results"] == cold["results"]
    compiled = cold["stats"]["num_compilations"]
    assert compiled > 5
    assert cold["stats"]["num_traces"] == compiled
    assert cold["stats"]["trace_events"] > 0
    assert cold["stats"]["num_unpersistable"] == 0
    stats = warm["stats"]
    assert (stats["num_compilations"], stats["num_traces"], stats["trace_events"]) == (0, 0, 0)
    assert stats["num_host_hits"] == compiled
    assert stats["num_cache_hits"] == stats["num_cache_reqs"]
    assert stats["num_cache_errors"] == 0
