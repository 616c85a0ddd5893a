"""The process of one model in one mode: answers each line of JSON on stdin with one on stdout."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from benchmarks.ways import Way, make

LIMIT_S = 300  # per command; a mode that hangs dies of it
SETTLED = 5  # steps after which nothing may compile any more
ITEM_EVERY, EVALUATION_EVERY = 10, 50


class Worker:
    """Commands by name; each returns what JSON can hold."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._losses: list[Any] = []

    def first(self) -> dict[str, float]:
        """Seconds of the first training step, its loss read, and what it compiled."""
        start = time.perf_counter()
        self._losses.append(self._way.step())
        self._way.wait(self._losses[0])
        return {"first_step_s": time.perf_counter() - start, "compiles": self._way.compiles()}

    def losses(self, count: int) -> dict[str, Any]:
        """The first `count` losses, seconds of the second step, late compilations."""
        start = time.perf_counter()
        self._losses.append(self._way.step())
        self._way.wait(self._losses[-1])
        second_s = time.perf_counter() - start
        while len(self._losses) < min(SETTLED, count):
            self._losses.append(self._way.step())
        before = self._way.compiles()
        while len(self._losses) < count:
            self._losses.append(self._way.step())
        found, self._losses = [float(x) for x in self._losses], []
        late = self._way.compiles() - before
        return {"losses": found, "late": late, "second_step_s": second_s}

    def train(self, count: int) -> dict[str, float]:
        """Milliseconds per training step, those of all threads' CPU time, and compilations."""
        return self._block(self._way.step, count)

    def infer(self, count: int) -> dict[str, float]:
        """Milliseconds per inference, and compilations."""
        return self._block(self._way.infer, count)

    def _block(self, run: Callable[[], Any], count: int) -> dict[str, float]:
        """Time of `count` runs, the last one waited for, after two that refill the caches."""
        before = self._way.compiles()
        for _ in range(2):
            value = run()
        self._way.wait(value)
        start, start_cpu = time.perf_counter(), time.process_time()
        values = [run() for _ in range(count)]  # fused mode computes only what somebody holds
        self._way.wait(values[-1])
        took_s, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
        return {
            "ms": took_s * 1e3 / count,
            "cpu_ms": cpu_s * 1e3 / count,
            "compiles": self._way.compiles() - before,
        }

    def late(self, kind: str, count: int) -> dict[str, int]:
        """Compilations after the settled steps of a loop with a schedule, reads or evaluations."""
        extra: Callable[[int, Any], Any] = {
            "schedule": lambda step, _: self._way.schedule(1 - step / (2 * count)),
            "item": lambda step, loss: step % ITEM_EVERY == 0 and float(loss),
            "evaluation": lambda step, _: step % EVALUATION_EVERY == 0 and self._evaluate(),
        }[kind]
        before = 0
        for step in range(count):
            if step == SETTLED:
                before = self._way.compiles()
            loss = self._way.step()
            extra(step, loss)
        self._way.wait(loss)
        return {"compiles": self._way.compiles() - before}

    def _evaluate(self) -> bool:
        for _ in range(2):
            self._way.wait(self._way.infer())
        return True

    @staticmethod
    def memory() -> dict[str, float]:
        """Peak resident memory of this process so far."""
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return {"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20}


def _answers() -> TextIO:
    """The real stdout; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def main() -> None:
    answers = _answers()
    worker: Worker | None = None
    for line in sys.stdin:
        signal.alarm(LIMIT_S)
        name, *arguments = json.loads(line)
        try:
            if name == "start":
                worker, answer = Worker(make(*arguments)), {}
            else:
                answer = getattr(worker, name)(*arguments)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
