"""Resident memory over 10,000 training steps of a small conv net; exit code 1 if it grows."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

WARM_STEPS = 500
LIMIT = 0.02  # of the resident memory after the warm steps


def resident_bytes() -> int:
    """Resident memory of this process; Linux only."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def train(device: str, steps: int, every: int) -> list[tuple[int, int]]:
    """Train on one batch; (step, resident bytes) from the warm step on, the last step included."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = torch.rand(16, 1, 8, 8), torch.randint(10, (16,))
    readings = []
    for step in tqdm(range(1, steps + 1), desc=device, unit="step"):
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        due = step >= WARM_STEPS and (step - WARM_STEPS) % every == 0
        if due or step == steps:
            loss.item()  # waits, so that the host does not run ahead of the device
            readings.append((step, resident_bytes()))
    return readings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    if args.steps <= WARM_STEPS:
        parser.error(f"--steps: expected more than {WARM_STEPS}, got {args.steps}")
    readings = train(args.device, args.steps, every=500)
    print(f"{platform.platform()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(shlex.join(sys.orig_argv))
    for step, size_bytes in readings:
        print(f"step {step:>6}: {size_bytes / 2**20:8.1f} MiB resident")
    growth = readings[-1][1] / readings[0][1] - 1
    print(f"growth from step {readings[0][0]}: {100 * growth:+.2f} %, limit {100 * LIMIT:.0f} %")
    return int(growth > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
