"""Runs many random programs: python -m tests.ops.fuzz --programs 20000."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch

from tests.ops.compared import difference, reduced
from tests.ops.programs import Maker

MODES = {
    "strict": torch.tpu.EagerMode.DEFER_NEVER,
    "fused": torch.tpu.EagerMode.DEFER_AND_FUSE,
}
_BATCH = 50  # programs that a process takes at a time


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of a program."""

    lines: int
    rejected: int  # by the CPU
    failure: str = ""


def run(seed: int, mode: str) -> Found:
    """Run the program of a seed; where it differs, say how, and by which of its lines."""
    program = Maker(random.Random(seed).choice).make()
    found = Found(lines=len(program.lines), rejected=sum(map(bool, program.cpu.errors)))
    if not difference(program, MODES[mode]):
        return found
    small = reduced(program, MODES[mode])
    why = difference(small, MODES[mode])
    text = f"# seed {seed}, {mode}: {why}\n{small.text()}\n"
    return Found(lines=found.lines, rejected=found.rejected, failure=text)


def _batch(work: tuple[Sequence[int], Sequence[str]]) -> list[Found]:
    seeds, modes = work
    return [run(seed, modes[seed % len(modes)]) for seed in seeds]


def _runs(seeds: range, modes: Sequence[str], processes: int) -> Iterator[Found]:
    batches = [(seeds[n : n + _BATCH], modes) for n in range(0, len(seeds), _BATCH)]
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context)  # a process that dies is an error
    try:
        for batch in pool.map(_batch, batches):
            yield from batch
    finally:
        pool.shutdown(cancel_futures=True)


def main() -> int:
    """Run programs from consecutive seeds, in each mode in turn; return how many differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=[*MODES, "both"], default="both")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--failures", type=int, default=10, help="stop after so many")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = parser.parse_args()
    modes = list(MODES) if options.mode == "both" else [options.mode]
    seeds = range(options.seed, options.seed + options.programs)
    start, seen, failures = time.monotonic(), [], 0
    for found in _runs(seeds, modes, options.processes):
        seen.append(found)
        if found.failure:
            failures += 1
            print(found.failure, flush=True)
        if failures >= options.failures or time.monotonic() - start > options.seconds:
            break
    print(
        f"{failures} of {len(seen)} programs differ ({sum(f.lines for f in seen)} lines, "
        f"{sum(f.rejected for f in seen)} rejected by the CPU), {time.monotonic() - start:.0f} s"
    )
    return failures


if __name__ == "__main__":
    sys.exit(min(main(), 1))
