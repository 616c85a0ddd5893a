"""A worker's answers, its end and its silence."""

from __future__ import annotations

import sys

import pytest

from tests.ops.worker import Died, Worker

PROGRAM = """
import os, sys, time
for line in sys.stdin:
    if line == "end\\n":
        os._exit(3)
    if line == "sleep\\n":
        time.sleep(60)
    print(os.getpid(), line, end="", flush=True)
"""


def test_answers_until_it_dies_and_then_anew() -> None:
    worker = Worker([sys.executable, "-c", PROGRAM], patience_s=30)
    first, second = worker.ask("a"), worker.ask("b")
    assert first.split()[1:] == ["a"]
    assert second.split() == [first.split()[0], "b"]
    with pytest.raises(Died, match="the process ended with 3"):
        worker.ask("end")
    third = worker.ask("c").split()
    assert third[1] == "c"
    assert third[0] != first.split()[0]
    worker.end()


def test_silence_is_an_end() -> None:
    worker = Worker([sys.executable, "-c", PROGRAM], patience_s=1)
    with pytest.raises(Died, match="it took more than 1 s"):
        worker.ask("sleep")
    worker.end()
