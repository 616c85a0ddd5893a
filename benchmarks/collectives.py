"""Time of collectives on device tpu beside torch's gloo on CPU tensors, between the same processes.

python benchmarks/collectives.py --processes 2 --json collectives.json

And of a training step under DistributedDataParallel, beside the same step of each process alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.models import LEARNING_RATE, LENGTH, VOCABULARY, Gpt

Key = TypeVar("Key")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = tuple(1 << n for n in (10, 14, 18, 20, 22, 24, 26))  # bytes of the larger side
DEVICES = ("tpu", "cpu")
_BLOCK_S = 0.3  # of one device, before the other has its turn
TRAINING = "training step of a GPT by DDP"
SMALL_BAR, LARGE_BAR, LARGE_BYTES = 1.5, 0.8, 1 << 20  # times gloo's time; times its bandwidth


def call(op: str, elements: int, device: str) -> Callable[[], None]:
    """Return a collective whose larger side has so many float32 elements."""
    size = dist.get_world_size()
    whole = torch.ones(elements, device=device)
    if op == "all_reduce":
        return lambda: dist.all_reduce(whole, dist.ReduceOp.MAX)
    if op == "all_to_all":
        other = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(other, whole)
    part = torch.ones(elements // size, device=device)
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    return lambda: dist.reduce_scatter_tensor(part, whole)


def training_step(device: str, *, ddp: bool) -> Callable[[], None]:
    """Return a training step of the GPT of `models.py` on a batch of this process's own."""
    torch.manual_seed(dist.get_rank())
    gpt = Gpt().to(device)
    model = DistributedDataParallel(gpt) if ddp else gpt
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    words = torch.randint(VOCABULARY, (4, LENGTH + 1)).to(device)

    def step() -> None:
        logits = model(words[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        next(iter(model.parameters())).sum().item()  # it is computed

    return step


def measure_training(rounds: int, block_s: float) -> dict[str, dict[str, float]]:
    """Return the median microseconds of a step, by how it is run and on which device."""
    calls = {
        (way, device): training_step(device, ddp=way == "ddp")
        for way in ("alone", "ddp")
        for device in DEVICES
    }
    for run in calls.values():
        for _ in range(6):  # fused mode has recorded and compiled by then
            run()
    found = take_turns(calls, rounds, block_s)
    return {way: {device: found[way, device] for device in DEVICES} for way in ("alone", "ddp")}


def measure(op: str, nbytes: int, rounds: int, block_s: float) -> dict[str, float]:
    """Return the median microseconds of a call on each device."""
    calls = {device: call(op, nbytes // 4, device) for device in DEVICES}
    return take_turns(calls, rounds, block_s)


def take_turns(
    calls: dict[Key, Callable[[], None]], rounds: int, block_s: float
) -> dict[Key, float]:
    """Return the median microseconds of calls that take turns."""
    counts = {device: _count(run, block_s) for device, run in calls.items()}
    times: dict[Key, list[float]] = {device: [] for device in calls}
    for _ in range(rounds):
        for device, run in calls.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(counts[device]):
                run()
            times[device].append(1e6 * (time.perf_counter() - start) / counts[device])
    return {device: statistics.median(found) for device, found in times.items()}


def _count(run: Callable[[], None], block_s: float) -> int:
    """Return how often a call fits a block, the same in every process."""
    run()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(3):
        run()
    count = torch.tensor(max(1, int(3 * block_s / (time.perf_counter() - start))))
    dist.broadcast(count, 0)
    return int(count)


def serve(rounds: int, file: Path, *, quick: bool) -> None:
    """Measure everything as one of the processes; the first writes the file."""
    torch.set_num_threads(1)
    dist.init_process_group("tpu_dist")
    sizes, block_s = (SIZES[:2], 0.02) if quick else (SIZES, _BLOCK_S)
    found = {
        op: {str(nbytes): measure(op, nbytes, rounds, block_s) for nbytes in sizes} for op in OPS
    }
    found[TRAINING] = measure_training(rounds, block_s)
    if dist.get_rank() == 0:
        file.write_text(json.dumps(found))
    dist.destroy_process_group()


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return a line per op and size: times, and gloo's time over ours (of bandwidths the same)."""
    steps = found.pop(TRAINING)
    lines = [f"{'op':15} {'bytes':>9} {'tpu us':>9} {'gloo us':>9} {'gloo/tpu':>9}  bar"]
    for op, sizes in found.items():
        for size, us in sizes.items():
            ratio, nbytes = us["cpu"] / us["tpu"], int(size)
            needed = LARGE_BAR if nbytes >= LARGE_BYTES else 1 / SMALL_BAR
            verdict = "PASS" if ratio >= needed else "FAIL"
            lines.append(
                f"{op:15} {nbytes:9} {us['tpu']:9.0f} {us['cpu']:9.0f} {ratio:9.2f}  {verdict}"
            )
    for device in DEVICES:
        alone, ddp = (steps[way][device] for way in ("alone", "ddp"))
        lines.append(
            f"{TRAINING} on {device}: {ddp:.0f} us, alone {alone:.0f} us: x {ddp / alone:.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Start the processes, wait for them, print what the first has measured."""
    parser = argparse.ArgumentParser(description="Collectives beside torch's gloo.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two sizes, short blocks")
    parser.add_argument("--json", type=Path, default=Path("collectives.json"))
    options = parser.parse_args()
    if "RANK" in os.environ:
        serve(options.rounds, options.json, quick=options.quick)
        return
    print(f"{platform.platform()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(shlex.join(sys.argv))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    common["WORLD_SIZE"] = str(options.processes)
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:]],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(options.processes)
    ]
    codes = [process.wait() for process in ranks]
    if any(codes):
        sys.exit("a process failed")
    print(table(json.loads(options.json.read_text())))


if __name__ == "__main__":
    main()
