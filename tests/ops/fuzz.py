"""Runs many random programs: python -m tests.ops.fuzz --programs 20000."""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import TypeVar

import torch

from tests.ops.compared import difference, reduced
from tests.ops.programs import Maker

T = TypeVar("T")
MODES = {
    "strict": torch.tpu.EagerMode.DEFER_NEVER,
    "fused": torch.tpu.EagerMode.DEFER_AND_FUSE,
}


def main() -> int:
    """Run programs from consecutive seeds, in each mode in turn; return how many differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=[*MODES, "both"], default="both")
    parser.add_argument("--failures", type=int, default=10, help="stop after so many")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = parser.parse_args()
    modes = list(MODES) if options.mode == "both" else [options.mode]
    start, failures, lines, rejected, number = time.monotonic(), 0, 0, 0, 0
    for number in range(options.programs):
        if failures >= options.failures or time.monotonic() - start > options.seconds:
            break
        program = Maker(random.Random(options.seed + number).choice).make()
        lines += len(program.lines)
        rejected += sum(map(bool, program.cpu.errors))
        mode = MODES[modes[number % len(modes)]]
        if difference(program, mode):
            failures += 1
            small = reduced(program, mode)
            found = f"# seed {options.seed + number}, {modes[number % len(modes)]}"
            print(f"{found}: {difference(small, mode)}\n{small.text()}\n", flush=True)
    seconds = time.monotonic() - start
    print(
        f"{failures} of {number + 1} programs differ ({lines} lines, {rejected} rejected by the "
        f"CPU), {seconds:.0f} s"
    )
    return failures


if __name__ == "__main__":
    sys.exit(min(main(), 1))
