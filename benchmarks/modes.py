"""Training and inference of three models in every mode, and whether the modes keep their bars.

Each mode is a process of its own. All processes of a model stay up and take turns, block by block,
so that a busy spell of the machine meets all of them; ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []  # run as a file, not as a module

from benchmarks.bars import check, table  # noqa: E402

# Steps of a timed block: some ten milliseconds for the fastest mode.
BLOCKS = {"mlp": 40, "gpt": 10, "cnn": 10}
EAGER = ("debug", "strict", "fused")
TPU = (*EAGER, "compiled", "compiled_step", "trainer")
MODES = (*TPU, "torch_cpu", "inductor", "jax")
MODULES = dict.fromkeys(MODES, "benchmarks.worker")  # what a mode's process runs
LATE = ("schedule", "item", "evaluation")

Results = dict[str, dict[str, dict[str, Any]]]


class Failed(Exception):
    """A mode cannot go on; the text says why."""


class Process:
    """A worker.py in its own process, asked one thing at a time."""

    def __init__(self, model: str, mode: str, cache: Path, errors: Path) -> None:
        self._errors = errors
        with errors.open("w") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULES[mode]],
                cwd=ROOT,
                env=os.environ | _environment(mode, cache),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._send("start", model, mode)

    def ready(self) -> None:
        """Wait until the model is on its device."""
        self._receive()

    def ask(self, *command: Any) -> dict[str, Any]:
        """Return the answer to a command; Failed where there is none."""
        self._send(*command)
        return self._receive()

    def close(self) -> None:
        """End the process and wait for it."""
        self._process.communicate()

    def _send(self, *command: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _last_words(self) -> str:
        lines = self._errors.read_text().strip().splitlines() or ["no message"]
        return f"process ended with {self._process.wait()}: {lines[-1]}"


def _environment(mode: str, cache: Path) -> dict[str, str]:
    """Equal threads for all, and each mode's own persistent cache."""
    threads = os.environ.get("OMP_NUM_THREADS", str(_cores()))
    common = {"OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "passive"}
    if mode not in TPU:
        common["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return common | {
        "TORCHTPU_MODE": mode if mode in EAGER else "strict",
        "TORCHTPU_CACHE_DIR": str(cache / "torchtpu"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # its pool of workers would stay and cost memory
        "JAX_COMPILATION_CACHE_DIR": str(cache / "jax") if mode == "jax" else "",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class Comparison:
    """One model: a process per mode, what has been measured of each, and why some are missing."""

    def __init__(self, model: str, modes: list[str], folder: Path) -> None:
        self._model, self._modes, self._folder = model, modes, folder
        self._processes: dict[str, Process] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}

    @contextmanager
    def started(self) -> Iterator[None]:
        """A process per mode, up to the point where its model is on the device."""
        with ExitStack() as stack:
            for mode in self._modes:
                self._processes[mode] = self._process(mode)
                stack.callback(self._processes[mode].close)
            self.each(lambda _, process: process.ready())
            yield
        self._processes.clear()

    def first(self, time_name: str, compiles_name: str) -> None:
        """The first training step, one mode after the other."""

        def ask(mode: str, process: Process) -> None:
            answer = process.ask("first")
            found = self.results.setdefault(mode, {})
            found |= {time_name: answer["first_step_s"], compiles_name: answer["compiles"]}

        self.each(ask)

    def each(self, do: Any, *modes: str) -> None:
        """Call with every mode and its process, or with some; drop a mode that fails."""
        for mode in modes or tuple(self._processes):
            try:
                do(mode, self._processes[mode])
            except Failed as failure:
                self._processes.pop(mode)
                self._modes.remove(mode)
                self.results.pop(mode, None)
                self.failures[mode] = str(failure)

    def losses(self, count: int) -> None:
        """Train `count` steps from the start."""

        def ask(mode: str, process: Process) -> None:
            answer = process.ask("losses", count)
            found = self.results[mode]
            found |= {name: answer[name] for name in ("losses", "second_step_s")}
            found["late_compiles"] = {"constant": answer["late"]}

        self.each(ask)

    def rounds(self, count: int, block: int) -> None:
        """Blocks of training and of inference in turns; who begins moves on by one each round."""
        for number in range(count):
            modes = list(self._processes)
            first = number % max(len(modes), 1)
            for what in ("train", "infer"):
                for mode in modes[first:] + modes[:first]:
                    if mode in self._processes:
                        self.each(lambda m, p, what=what: self._block(m, p, what, block), mode)

    def _block(self, mode: str, process: Process, what: str, block: int) -> None:
        answer, found = process.ask(what, block), self.results[mode]
        for name, key in (("", "ms"), ("cpu_", "cpu_ms")):
            rounds = found.setdefault(f"{what}_{name}rounds_ms", [])
            rounds.append(answer[key])
            found[f"{what}_{name}ms"] = statistics.median(rounds)
        if what == "train":
            found["late_compiles"]["constant"] += answer["compiles"]

    def memory(self) -> None:
        """Peak resident memory up to here."""
        self.each(lambda m, p: self.results[m].update(peak_rss_mib=p.ask("memory")["mib"]))

    def late(self, count: int) -> None:
        """Loops that do more than train; torch CPU compiles nothing, debug what strict does."""
        for kind in LATE:

            def ask(mode: str, process: Process, kind: str = kind) -> None:
                if mode not in ("torch_cpu", "debug"):
                    answer = process.ask("late", kind, count)
                    self.results[mode]["late_compiles"][kind] = answer["compiles"]

            self.each(ask)

    def _process(self, mode: str) -> Process:
        name = f"{self._model}-{mode}"
        return Process(self._model, mode, self._folder / name, self._folder / f"{name}.err")


def measure(model: str, args: argparse.Namespace) -> Comparison:
    """All that is measured of a model."""
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(model, list(args.modes), Path(folder))
        with comparison.started():
            comparison.first("first_step_s", "compiles")
            comparison.losses(args.losses)
            comparison.rounds(args.rounds, max(1, BLOCKS[model] * args.block // 10))
            comparison.memory()
            comparison.late(args.steps)
        with comparison.started():  # again, beside the persistent caches of the processes before
            comparison.first("warm_first_step_s", "warm_compiles")
    return comparison


def heading(args: argparse.Namespace) -> str:
    """Where and how this was measured."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "jax", "jaxlib"))
    return (
        f"{platform.platform()}, {_cores()} cores and threads, Python {platform.python_version()}, "
        f"{versions}\n{shlex.join(sys.orig_argv)}\n"
        f"float32, AdamW; ms per step: median of {args.rounds} rounds in turns, each block ends "
        "with reading its last value\n"
    )


def arguments() -> argparse.Namespace:
    """The command line; --quick is for tests of this program, not for numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(BLOCKS), default=list(BLOCKS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--steps", type=int, default=110, help="steps of the loops that may drift")
    parser.add_argument("--rounds", type=int, default=9, help="timed blocks per mode")
    parser.add_argument("--block", type=int, default=25, help="steps of a block, mlp fourfold")
    parser.add_argument("--losses", type=int, default=50, help="losses compared with torch's CPU")
    parser.add_argument("--quick", action="store_true", help="mlp, few steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {model: {mode: {...}}}")
    args = parser.parse_args()
    if args.quick:
        args.models, args.steps, args.rounds, args.block, args.losses = ["mlp"], 12, 2, 1, 8
    return args


def main() -> None:
    args = arguments()
    print(heading(args), flush=True)
    results: Results = {}
    for model in args.models:
        start = time.perf_counter()
        comparison = measure(model, args)
        results[model] = comparison.results
        print(table(model, comparison.results))
        for mode, why in comparison.failures.items():
            print(f"{model:<5}{mode}: not measured: {why.splitlines()[0][:200]}")
        print(f"{model:<5}took {time.perf_counter() - start:.0f} s\n", flush=True)
    print("\n".join(check(results)))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
