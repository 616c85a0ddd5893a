"""Every OpInfo on the device: beside torch's CPU in strict mode, beside strict mode in the others.

python -m tests.ops.sweep --dtype float32 --mode strict --json results.jsonl

Prints what is not wholly right and a table; exits with 1 where exceptions.toml does not say so.
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.lowerings import opinfo
from tests.ops.worker import Died, Worker, serve

MODES = ("strict", "debug", "fused", "compiled")
CONTROL = "control"  # no mode: results made wrong by a hundredth fail here where they do on the CPU
DTYPES = ("float32", "bfloat16", "int64", "bool", "float64", "complex64")
_EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
_PATIENCE_S = 1800.0  # for one OpInfo: some have a thousand samples
Job = tuple[str, str, str]  # OpInfo, dtype, mode


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A row of exceptions.toml."""

    op: str
    dtype: str
    reason: str
    date: str
    mode: str = "strict"
    tolerance: float | None = None
    fails: bool = False  # and has to, over all samples: one that passes is an error


@dataclass(kw_only=True)
class Result:
    """What became of an OpInfo's samples."""

    op: str
    dtype: str
    mode: str
    whole: bool = True  # all samples
    samples: int = 0  # that the CPU runs
    passed: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """Return "pass", "partial", "fail", or "none" where there was nothing to compare."""
        if self.samples == self.passed:
            return "pass" if self.samples else "none"
        return "partial" if self.passed else "fail"


@cache
def deviations() -> dict[tuple[str, str, str], Deviation]:
    """Return the rows of exceptions.toml by (op, dtype, mode)."""
    rows = tomllib.loads(_EXCEPTIONS.read_text()).get("exception", [])
    known = {(row["op"], row["dtype"], row.get("mode", "strict")): Deviation(**row) for row in rows}
    assert len(known) == len(rows), "exceptions.toml has a row twice"
    return known


def sweep(name: str, dtype: str, mode: str = "strict", max_samples: int | None = None) -> Result:
    """Compare an OpInfo's samples: strict mode with the CPU, any other with strict mode."""
    result = Result(op=name, dtype=dtype, mode=mode, whole=max_samples is None)
    start = time.perf_counter()
    for trial in _trials(name, dtype, mode, max_samples):
        try:
            trial()
        except opinfo.Rejected:
            continue
        except Exception as error:
            first = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            result.errors[first] = result.errors.get(first, 0) + 1
        else:
            result.passed += 1
        result.samples += 1
    torch._dynamo.reset()
    result.seconds = time.perf_counter() - start
    return result


def _trials(name: str, dtype: str, mode: str, max_samples: int | None) -> Iterator[Any]:
    known = deviations().get((name, dtype, mode))
    settings: dict[str, Any] = {"tolerance": known.tolerance if known else None}
    trials = partial(opinfo.trials, name, getattr(torch, dtype), max_samples)
    if mode == CONTROL:
        within = _within("strict"), nullcontext
        on_both = (
            trials(actual=_wrongly, on=(device, "cpu"), within=within) for device in ("tpu", "cpu")
        )
        return (partial(_fail_alike, *pair) for pair in zip(*on_both, strict=True))
    settings["within"] = _within(mode), _within("strict")
    if mode != "strict":
        settings["on"] = "tpu", "tpu"
    if mode == "compiled":
        settings["actual"] = _compiled
    if mode == "debug":
        settings["tolerance"] = 0.0
    return trials(**settings)


def _within(mode: str) -> Callable[[], AbstractContextManager[Any]]:
    eager = torch.tpu.EagerMode("strict" if mode == "compiled" else mode)
    return partial(torch.tpu.set_eager_mode, eager)


def _wrongly(op: Any, *args: Any, **kwargs: Any) -> Any:
    return tree_map(
        lambda v: v * 1.01 if isinstance(v, torch.Tensor) and v.dtype.is_floating_point else v,
        op(*args, **kwargs),
    )


def _fail_alike(device: Callable[[], None], cpu: Callable[[], None]) -> None:
    fails = [False, False]
    for n, trial in enumerate((device, cpu)):
        try:
            trial()
        except AssertionError:
            fails[n] = True
    assert fails[0] == fails[1], f"the device's fails: {fails[0]}, the CPU's: {fails[1]}"


def verdict(result: Result) -> str:
    """Return what is wrong with a result; empty where it is as exceptions.toml says, or passes."""
    known = deviations().get((result.op, result.dtype, result.mode))
    is_wrong = result.status in ("partial", "fail")
    if known is not None and known.fails:
        passes = result.whole and result.status == "pass"
        return "passes, but exceptions.toml says it fails" if passes else ""
    return "; ".join(f"{n} x {text}" for text, n in result.errors.items()) if is_wrong else ""


def _compiled(op: Any, *args: Any, **kwargs: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(lambda: op(*args, **kwargs), backend="tpu", dynamic=False)()


def twentieth(names: Sequence[str], part: int) -> list[str]:
    """Return one of twenty parts of the names."""
    return [name for n, name in enumerate(names) if n % 20 == part % 20]


def _done(worker: Worker, job: Job) -> Result:
    try:
        return Result(**json.loads(worker.ask(json.dumps(job))))
    except Died as end:
        op, dtype, mode = job
        return Result(op=op, dtype=dtype, mode=mode, samples=1, errors={str(end): 1})


def sweep_all(jobs: Sequence[Job], processes: int, max_samples: int | None) -> Iterator[Result]:
    """Yield results as they come, from processes that a crash cannot take along."""
    command = [sys.executable, "-m", "tests.ops.sweep", "--worker"]
    command += [] if max_samples is None else ["--samples", str(max_samples)]
    waiting = iter(jobs)
    lock = threading.Lock()
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()

    def work() -> None:
        worker = Worker(command, _PATIENCE_S)
        try:
            while True:
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                results.put(_done(worker, job))
        finally:
            worker.end()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for _ in jobs:
        yield results.get()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.ops.sweep", description=__doc__)
    parser.add_argument("--dtype", nargs="+", default=["float32"], metavar="DTYPE")
    parser.add_argument("--mode", nargs="+", default=["strict"], choices=(*MODES, CONTROL))
    parser.add_argument("--ops", default=".*", help="regular expression of the whole name")
    parser.add_argument("--samples", type=int, help="of each op at most; default: all")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file for one result per line")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        return serve(lambda op, dtype, mode: asdict(sweep(op, dtype, mode, given.samples)))
    names = [n for n in opinfo.names() if re.fullmatch(given.ops, n)]
    everything = product(given.mode, given.dtype, names)
    jobs = [(n, d, m) for m, d, n in everything if m != CONTROL or not opinfo.is_random(n)]
    results = []
    with given.json.open("w") if given.json else nullcontext() as file:
        for result in sweep_all(jobs, given.processes, given.samples):
            results.append(result)
            wrong = verdict(result)
            if wrong:
                where = f"{result.op} {result.dtype} {result.mode}"
                print(f"{where} {result.passed}/{result.samples}: {wrong}")
            if file:
                file.write(json.dumps(asdict(result)) + "\n")
    print(_table(results))
    return int(any(verdict(r) for r in results))


def _table(results: Sequence[Result]) -> str:
    lines = [f"{'mode':9} {'dtype':10} {'right':>6} {'of':>5} {'samples':>8} {'seconds':>8}"]
    for mode, dtype in dict.fromkeys((r.mode, r.dtype) for r in results):
        rows = [r for r in results if (r.mode, r.dtype) == (mode, dtype) and r.status != "none"]
        right = sum(r.status == "pass" for r in rows)
        samples, seconds = sum(r.samples for r in rows), sum(r.seconds for r in rows)
        lines.append(f"{mode:9} {dtype:10} {right:6} {len(rows):5} {samples:8} {seconds:8.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
