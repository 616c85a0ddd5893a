"""A training step over four CPU devices: torchtpu.spmd beside jax.jit with shardings by hand.

python benchmarks/spmd.py --steps 20 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHTPU_TARGET", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from torchtpu import spmd
from torchtpu.compiler.whole_step import WholeStep

DEVICES, BATCH, WIDTH, HIDDEN, RATE = 4, 64, 256, 1024, 1e-2
WAYS = ("whole step", "fused", "jax.jit by hand")
BAR = 1.25  # times the step of jax.jit, for a whole step

Step = Callable[[], Any]


def weights() -> list[np.ndarray[Any, Any]]:
    """Return float32 [HIDDEN, WIDTH] and [WIDTH, HIDDEN]."""
    bits = np.random.default_rng(0)
    shapes = (HIDDEN, WIDTH), (WIDTH, HIDDEN)
    return [bits.standard_normal(s, np.float32) / np.float32(np.sqrt(s[1])) for s in shapes]


def batch() -> np.ndarray[Any, Any]:
    """Return float32 [BATCH, WIDTH]."""
    return np.random.default_rng(1).standard_normal((BATCH, WIDTH), np.float32)


class Mlp(nn.Module):
    """Two layers, split over the hidden dim."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.tensor(w)) for w in weights())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, WIDTH] -> the same."""
        made: torch.Tensor = torch.relu(x @ self.up.t()) @ self.down.t()
        return made


def by_torch(mesh: spmd.Mesh, *, whole: bool) -> Step:
    """Return a step of torchtpu, which returns the loss."""
    rules: dict[str, spmd.PartitionSpec] = {"up": ("tensor",), "down": (None, "tensor")}
    net = spmd.shard_module(Mlp().to("tpu"), mesh, rules)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    x = spmd.shard(torch.tensor(batch()), mesh, ("data",))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (net(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        made: torch.Tensor = loss.detach()
        return made

    run: Any = WholeStep(step, (net,), (optimizer,)) if whole else step
    return lambda: run(x)


def by_jax() -> Step:
    """Return the same step as a JAX engineer writes it."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = np.array(jax.devices("cpu")[:DEVICES]).reshape(2, 2)
    mesh = Mesh(devices, ("data", "tensor"))
    rows, columns, data = (
        NamedSharding(mesh, PartitionSpec(*s)) for s in (("tensor",), (None, "tensor"), ("data",))
    )
    up, down = weights()
    state = [jax.device_put(up, rows), jax.device_put(down, columns)]
    x = jax.device_put(batch(), data)

    def loss_of(state: Any, x: Any) -> Any:
        up, down = state
        return jnp.square(jax.nn.relu(x @ up.T) @ down.T - x).mean()

    def update(state: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(state, x)
        return [p - RATE * g for p, g in zip(state, grads, strict=True)], loss

    jitted = jax.jit(update, donate_argnums=0, out_shardings=([rows, columns], None))

    def step() -> Any:
        nonlocal state
        state, loss = jitted(state, x)
        return loss

    return step


def measure(ways: dict[str, Step], steps: int, rounds: int) -> dict[str, float]:
    """Return the median ms of a step; the ways take turns, and each step's loss is read."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for name in [n for _ in range(rounds) for n in ways]:
        float(ways[name]())
        start = time.perf_counter()
        for _ in range(steps):
            float(ways[name]())
        times[name].append(1e3 * (time.perf_counter() - start) / steps)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> int:
    """Compare losses and times; 1 where they differ, or a whole step is slower than the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = spmd.use(spmd.Mesh((2, 2), ("data", "tensor")))
    made = (by_torch(mesh, whole=True), by_torch(mesh, whole=False), by_jax())
    ways = dict(zip(WAYS, made, strict=True))
    losses = {name: [float(step()) for _ in range(5)] for name, step in ways.items()}
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, ", end="")
    print(f"torch {torch.__version__}, jax {jax.__version__}: {shlex.join(sys.argv)}")
    found = measure(ways, asked.steps, asked.rounds)
    alike = all(np.allclose(losses[n], losses[WAYS[-1]], rtol=1e-4) for n in WAYS)
    for name, ms in found.items():
        print(f"{name:16} {ms:8.3f} ms, {ms / found[WAYS[-1]]:.2f} of jax.jit")
    is_quick = found[WAYS[0]] <= BAR * found[WAYS[-1]]
    print(f"{'PASS' if alike else 'FAIL'} losses of 5 steps agree to 1e-4")
    print(f"{'PASS' if is_quick else 'FAIL'} a whole step takes at most {BAR} of jax.jit's time")
    if asked.json:
        asked.json.write_text(json.dumps(found))
    return int(not (alike and is_quick))


if __name__ == "__main__":
    raise SystemExit(main())
