"""Time per op of the eager modes, beside jax.jit of the same op and torch's own CPU device."""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

SIDE = 128
REFERENCE = "jax.jit"
EAGER_MODES = {
    "fused": "DEFER_AND_FUSE",
    "strict": "DEFER_NEVER",
    "debug": "DEFER_NEVER_AND_LAUNCH_BLOCKING",
}
RECORDING = "recording"  # fused mode without the programs: what the host does for each op

# Values stay near 1 however long the chain is: x + 0, and x @ identity.
OPS: dict[str, tuple[str, np.ndarray[Any, Any]]] = {
    "add": ("add", np.zeros((SIDE, SIDE), np.float32)),
    "mm": ("matmul", np.eye(SIDE, dtype=np.float32)),
}

Loop = Callable[[int], float | None]  # may return its own seconds


def torch_loop(op: str, device: str) -> Loop:
    """A chain of one torch op; reading an element at the end waits for the whole chain."""
    name, operand = OPS[op]
    function = torch.add if name == "add" else torch.mm
    y = torch.from_numpy(operand).to(device)

    def loop(count: int) -> None:
        x = torch.ones(SIDE, SIDE, device=device)
        for _ in range(count):
            x = function(x, y)
        x[0, 0].item()

    return loop


def eager_loop(op: str, mode: str) -> Loop:
    """The chain on device tpu in one of the eager modes."""
    loop, tpu = torch_loop(op, "tpu"), vars(torch)["tpu"]
    value = getattr(tpu.EagerMode, EAGER_MODES[mode])

    def in_mode(count: int) -> None:
        with tpu.set_eager_mode(value):
            loop(count)
            tpu.synchronize()

    return in_mode


def recording_loop(op: str) -> Loop:
    """The chain in fused mode, 200 ops to a program; only their recording is timed."""
    name, operand = OPS[op]
    function = torch.add if name == "add" else torch.mm
    y, tpu = torch.from_numpy(operand).to("tpu"), vars(torch)["tpu"]

    def loop(count: int) -> float:
        spent_s = 0.0
        with tpu.set_eager_mode(tpu.EagerMode.DEFER_AND_FUSE):
            for done in range(0, count, 200):
                x = torch.ones(SIDE, SIDE, device="tpu")
                start = time.perf_counter()
                for _ in range(min(200, count - done)):
                    x = function(x, y)
                spent_s += time.perf_counter() - start
                x[0, 0].item()
        return spent_s

    return loop


def jax_loop(op: str) -> Loop:
    """The same chain of a jitted jax op."""
    name, operand = OPS[op]
    function = jax.jit(getattr(operator, name))
    y = jnp.asarray(operand)

    def loop(count: int) -> None:
        x = jnp.ones((SIDE, SIDE), jnp.float32)
        for _ in range(count):
            x = function(x, y)
        x.block_until_ready()

    return loop


def loops(op: str, with_tpu: bool) -> dict[str, Loop]:
    """Every way to run the op, by the name that the table gives it."""
    eager = {mode: eager_loop(op, mode) for mode in EAGER_MODES} if with_tpu else {}
    if with_tpu:
        eager[RECORDING] = recording_loop(op)
    return eager | {REFERENCE: jax_loop(op), "torch cpu": torch_loop(op, "cpu")}


def measure(ways: dict[str, Loop], count: int, repeats: int) -> dict[str, float]:
    """Median microseconds per op; the ways take turns, so that a busy spell meets all of them."""
    for loop in ways.values():
        loop(count)  # in fused mode a chain of another length is another program
    times_us: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, loop in ways.items():
            start = time.perf_counter()
            own_s = loop(count)
            took_s = time.perf_counter() - start if own_s is None else own_s
            times_us[name].append(took_s * 1e6 / count)
    return {name: statistics.median(values) for name, values in times_us.items()}


def heading(count: int, repeats: int) -> str:
    """Where and how this was measured."""
    python, cores = platform.python_version(), os.cpu_count()
    return (
        f"{platform.platform()}, {cores} cores, {torch.get_num_threads()} torch threads, "
        f"Python {python}, torch {torch.__version__}, jax {jax.__version__}\n"
        f"{shlex.join(sys.orig_argv)}\n"
        f"us per op, {SIDE}x{SIDE} float32, median of {repeats} loops of {count}"
    )


def table(results: dict[str, dict[str, float]]) -> str:
    """A line per op and mode, with the ratio to the reference."""
    lines = [f"{'op':<6}{'mode':<12}{'us':>8}{'/ ' + REFERENCE:>12}"]
    for op, times_us in results.items():
        for mode, us in times_us.items():
            lines.append(f"{op:<6}{mode:<12}{us:>8.1f}{us / times_us[REFERENCE]:>12.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="ops per loop")
    parser.add_argument("--repeats", type=int, default=9, help="loops per mode")
    parser.add_argument("--no-tpu", action="store_true", help="only what needs no torchtpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {op: {mode: us}}")
    args = parser.parse_args()
    print(heading(args.count, args.repeats))
    results = {op: measure(loops(op, not args.no_tpu), args.count, args.repeats) for op in OPS}
    print(table(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
