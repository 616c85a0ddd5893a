"""The whole road in seconds: autoload, ops, views, a step, a checkpoint, printing, target sim."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import torch
from torch import nn

SIMULATED = """
import torch
x = torch.arange(6.0, device="tpu").reshape(2, 3)
print(torch.tpu.get_device_name(), (x @ x.t()).sum().item())
start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
start.record(); y = x.exp(); end.record()
print(0 < start.elapsed_time(end) < 1)
"""


def test_import_torch_is_enough() -> None:
    x = torch.ones(2, device="tpu") * 3
    assert x.device.type == "tpu"
    assert str(x) == "tensor([3., 3.], device='tpu:0')"


def test_in_place_through_a_view() -> None:
    x = torch.zeros(2, 3, device="tpu")
    x[:, 1].add_(torch.tensor([1.0, 2.0]).to("tpu"))
    x.t()[0] = 7
    assert x.tolist() == [[7, 1, 0], [7, 2, 0]]


def test_a_training_step_and_its_checkpoint() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(16, 4, device="tpu"), torch.randint(0, 2, (16,), device="tpu")
    losses = []
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]

    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True, map_location="cpu")
    on_host = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    on_host.load_state_dict(loaded["model"])
    torch.testing.assert_close(on_host(inputs.cpu()), model(inputs).cpu())


def test_simulated_tpu() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", SIMULATED],
        env=os.environ | {"TORCHTPU_TARGET": "sim:v5e"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr == ""
    assert run.stdout.splitlines() == ["TPU v5e (simulated) 83.0", "True"]
