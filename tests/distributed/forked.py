"""Worlds of processes that are forked, so that what this one has imported they need not import."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FORK = multiprocessing.get_context("fork")
_GRACE_S = 5.0  # for the other ranks to end when one has failed
_NAP_S = 5e-3
_LOG_CHARS = 20000


@dataclass
class Outcome:
    """What became of a test in a world: pass, fail, skip or hang; and why."""

    verdict: str
    why: str = ""
    calls: dict[str, int] = field(default_factory=dict)  # collectives, by where they ran
    seconds: float = 0.0


class Rank:
    """One process of a world: which, of how many, a folder that all share, and counts to fill."""

    def __init__(self, number: int, size: int, folder: str) -> None:
        self.number, self.size, self.folder = number, size, folder
        self.calls: Counter[str] = Counter()


def run(test: Callable[[Rank], None], size: int, patience_s: float) -> Outcome:
    """Call test(rank) in `size` processes; a rank that fails leaves the others 5 s.

    This process has not used the device: a fork would share it.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchtpu-forked-") as folder:
        answers = _FORK.SimpleQueue()
        ranks = [Rank(number, size, folder) for number in range(size)]
        processes = [_FORK.Process(target=_serve, args=(test, r, answers)) for r in ranks]
        for process in processes:
            process.start()
        found: dict[int, Outcome] = {}
        end = start + patience_s
        while len(found) < size and time.monotonic() < end:
            waited_for = [p for n, p in enumerate(processes) if n not in found]
            is_over = not any(p.is_alive() for p in waited_for)
            if answers.empty():
                if is_over:
                    break
                time.sleep(_NAP_S)
                continue
            number, found[number] = answers.get()
            if found[number].verdict == "fail":
                end = min(end, time.monotonic() + _GRACE_S)
        for number, process in enumerate(processes):
            process.join(_GRACE_S if number in found else _NAP_S)
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGKILL)
                process.join()
                found.setdefault(number, Outcome("hang", "still ran when its time was over"))
            log = Path(folder, f"log{number}").read_text(errors="replace")[-_LOG_CHARS:]
            found.setdefault(number, Outcome("fail", f"ended with {process.exitcode}: {log}"))
    return _joined(found, time.monotonic() - start)


def _joined(found: dict[int, Outcome], seconds: float) -> Outcome:
    for verdict in ("fail", "hang", "skip"):
        which = {rank: o.why for rank, o in sorted(found.items()) if o.verdict == verdict}
        if which:
            why = "\n".join(f"rank {rank}: {text}" for rank, text in which.items())
            return Outcome(verdict, why, seconds=seconds)
    calls = sum((Counter(o.calls) for o in found.values()), Counter[str]())
    return Outcome("pass", calls=dict(calls), seconds=seconds)


def _serve(test: Callable[[Rank], None], rank: Rank, answers: Any) -> None:
    log = os.open(os.path.join(rank.folder, f"log{rank.number}"), os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable(log)
    try:
        test(rank)
        outcome = Outcome("pass", calls=dict(rank.calls))
    except unittest.SkipTest as reason:
        outcome = Outcome("skip", str(reason))
    except SystemExit as left:
        outcome = _left(left.code)
    except BaseException as error:
        outcome = Outcome("fail", "".join(traceback.format_exception(error)))
    answers.put((rank.number, outcome))
    os._exit(0)


def _left(code: object) -> Outcome:
    """Tell a skip, which torch's tests say by an exit code, from a failure."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    for skip in TEST_SKIPS.values():
        if skip.exit_code == code:
            return Outcome("skip", skip.message)
    return Outcome("fail", f"exit {code}")
