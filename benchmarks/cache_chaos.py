"""Processes that share a compile cache are killed while its files are truncated, flipped, swapped.

    python benchmarks/cache_chaos.py           # the cache alone, with a stand-in for the compiler
    python benchmarks/cache_chaos.py --real    # torch on device tpu, XLA's CPU compiler

Every round starts processes at once; those that are not killed must end well and have compiled no
program twice. The first round is without kills: there each program is compiled once on the host.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torchtpu.cache.key import Key
from torchtpu.cache.memory import ProgramCache
from torchtpu.cache.store import Store
from torchtpu.cache.tier import Tier
from torchtpu.cache.tiers import Codec, Tiers

PROGRAMS = 24
BOUND_BYTES = 1 << 20  # less than all programs of the stand-in need: entries are evicted, too
Compiled = Callable[[str], object]  # told of each program that is compiled
Work = Callable[[Path, random.Random, Compiled], None]


@dataclass
class Outcome:
    """What happened in all rounds."""

    kills: int = 0
    survivors: int = 0
    failures: int = 0  # of processes that nobody killed
    sabotaged: int = 0
    compiles_of_first_round: int = 0
    compiles: Counter[tuple[str, str]] = field(default_factory=Counter)  # by process and program

    @property
    def programs(self) -> int:
        """How many different programs were compiled."""
        return len({digest for _, digest in self.compiles})

    @property
    def most_compiles(self) -> int:
        """The most compiles of one program in one process."""
        return max(self.compiles.values(), default=0)


def stand_in(
    directory: Path, order: random.Random, compiled: Compiled, bound_bytes: int = BOUND_BYTES
) -> None:
    """Get every program from tiers whose compiler computes bytes from the key."""
    memory: ProgramCache[bytes] = ProgramCache(2 * PROGRAMS)
    host = Tier("host", lambda: Store(directory / "host", bound_bytes=bound_bytes))
    shared = Tier("shared", lambda: Store(directory / "shared", shared=True), 10.0)
    tiers = Tiers(memory, host, shared)
    for number in order.sample(range(PROGRAMS), PROGRAMS) * 2:
        key = Key((("program", str(number)),))

        def compile_(key: Key = key) -> bytes:
            compiled(key.digest)
            time.sleep(order.uniform(0.0, 0.004))
            return _bytes_of(key)

        codec = Codec(compile=compile_, load=bytes, dump=bytes)
        found = memory.get(key, lambda key=key, codec=codec: tiers.get(key, "program", codec))  # type: ignore[misc]
        if found != _bytes_of(key):
            raise AssertionError(f"a wrong executable for program {number}")


def _bytes_of(key: Key) -> bytes:
    return hashlib.shake_256(key.digest.encode()).digest(1000 * (1 + int(key.digest[:2], 16)))


def real(_directory: Path, order: random.Random, compiled: Compiled) -> None:
    """Compute on device tpu, through every layer, and compare with numpy."""
    import numpy as np
    import torch

    from torchtpu import executor

    target = executor.current().target
    compile_ = target.compile

    def counted(module: object, outputs: object) -> object:
        compiled(hashlib.sha256(str(module).encode()).hexdigest())
        return compile_(module, outputs)  # type: ignore[arg-type]

    target.compile = counted  # type: ignore[method-assign,assignment]
    for number in order.sample(range(PROGRAMS), PROGRAMS):
        host = np.arange(number + 2, dtype=np.float32)
        device = torch.from_numpy(host).to("tpu")
        found = ((device * 3 + number).cumsum(0) - device).cpu().numpy()
        np.testing.assert_array_equal(found, (host * 3 + number).cumsum() - host)


def _child(work: Work, directory: Path, seed: int, gate: int, name: str) -> None:
    """Run one process of a round; never returns."""
    code = 1
    try:
        journal = os.open(directory / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.read(gate, 1)  # until the parent lets all begin
        line = f"{name} {{}}\n"
        work(directory, random.Random(seed), lambda d: os.write(journal, line.format(d).encode()))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class Chaos:
    """Rounds of processes over one directory."""

    def __init__(self, directory: Path, processes: int, seed: int):
        self.outcome = Outcome()
        self._directory = directory
        self._processes = processes
        self._random = random.Random(seed)
        self._rounds = 0

    def round(self, work: Work, kills: int, pause_s: float) -> None:
        """Start the processes at once, kill some and damage entries until all have ended."""
        self._rounds += 1
        living = self._start(work)
        while living:
            time.sleep(self._random.uniform(0, pause_s))
            if kills and self._random.random() < 0.5:
                os.kill(self._random.choice(sorted(living)), signal.SIGKILL)
                kills -= 1
            elif self._rounds > 1:
                self._damage()
            self._reap(living)
        self._read_journal()

    def _start(self, work: Work) -> set[int]:
        gate, opener = os.pipe()
        living = set()
        for number in range(self._processes):
            seed = self._random.getrandbits(32)
            pid = os.fork()
            if pid == 0:
                os.close(opener)
                name = f"{self._rounds}.{number}"
                _child(work, self._directory, seed, gate, name)
            living.add(pid)
        os.close(gate)
        os.close(opener)
        return living

    def _reap(self, living: set[int]) -> None:
        for pid in sorted(living):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            living.remove(pid)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                self.outcome.kills += 1
            elif status == 0:
                self.outcome.survivors += 1
            else:
                self.outcome.failures += 1

    def _damage(self) -> None:
        """Truncate, flip a bit of, or replace an entry of either tier."""
        files = sorted(self._directory.glob("*/**/*.exe"))
        if len(files) < 2:
            return
        victim, other = self._random.sample(files, 2)
        try:
            data = bytearray(victim.read_bytes())
            how = self._random.randrange(3)
            if how == 0:
                os.truncate(victim, self._random.randrange(len(data)))
            elif how == 1:
                data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
                victim.write_bytes(data)
            else:
                victim.write_bytes(other.read_bytes())
            self.outcome.sabotaged += 1
        except (FileNotFoundError, ValueError):
            pass  # evicted, or truncated to nothing before

    def _read_journal(self) -> None:
        journal = self._directory / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        self.outcome.compiles = Counter((n, d) for n, d in (line.split() for line in lines))
        if self._rounds == 1:
            self.outcome.compiles_of_first_round = len(lines)


def run(directory: Path, is_real: bool, kills: int, processes: int, seed: int) -> Outcome:
    """Make rounds until so many processes were killed."""
    chaos = Chaos(directory, processes, seed)
    chaos.round(real if is_real else partial(stand_in, bound_bytes=0), 0, 0.01)
    work: Work = real if is_real else stand_in
    while chaos.outcome.kills < kills:
        left = kills - chaos.outcome.kills
        chaos.round(work, min(processes - 2, left), 0.2 if is_real else 0.01)
    return chaos.outcome


def main() -> int:
    """Run, print one line of JSON; exit code 1 where something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", action="store_true", help="torch and XLA instead of a stand-in")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.real:
            _import_all(Path(folder))
        seed, processes = arguments.seed, arguments.processes
        found = run(Path(folder), arguments.real, arguments.kills, processes, seed)
    line = {n: v for n, v in vars(found).items() if n != "compiles"}
    line |= {"most_compiles": found.most_compiles, "compiles": sum(found.compiles.values())}
    line |= {"programs": found.programs, "processes": processes, "real": arguments.real}
    print(json.dumps(line | {"seconds": round(time.perf_counter() - start, 1)}))
    once = found.compiles_of_first_round == found.programs
    return int(found.failures > 0 or found.most_compiles > 1 or not once)


def _import_all(directory: Path) -> None:
    """Import before the fork what all processes need; XLA, with its threads, starts after it."""
    os.environ["TORCHTPU_TARGET"] = "cpu"
    os.environ["TORCHTPU_CACHE_DIR"] = str(directory / "host")
    os.environ["TORCH_TPU_TIER2_COMPILATION_CACHE"] = "chaos"
    os.environ["TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"] = str(directory / "shared")
    warnings.simplefilter("ignore")  # of fork beside threads: there are none yet
    import torch._dynamo  # noqa: F401  # torch.optim imports it

    from torchtpu.lowerings import registry

    registry.table()


if __name__ == "__main__":
    sys.exit(main())
