"""Threads for jobs: how many, that they end, errors, and what a dying interpreter leaves undone."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from torchtpu.background import Job, Workers


def _threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "torchtpu-compile"]


def test_no_more_threads_than_the_limit_and_none_afterwards() -> None:
    workers, gate = Workers(2), threading.Event()
    seen: list[int] = []

    def work() -> int:
        gate.wait(30)
        seen.append(len(_threads()))
        return threading.get_ident()

    jobs = [Job(work) for _ in range(5)]
    for job in jobs:
        workers.submit(job)
    threads = _threads()
    assert not any(job.ready() for job in jobs)
    gate.set()
    assert threading.get_ident() not in {job.take() for job in jobs}
    assert max(seen) <= 2
    for thread in threads:
        thread.join(30)
    assert not any(t.is_alive() for t in threads)


def test_without_threads_a_job_is_done_at_once() -> None:
    job = Job(threading.get_ident)
    Workers(0).submit(job)
    assert job.ready()
    assert job.take() == threading.get_ident()


@pytest.mark.parametrize("limit", [0, 1])
def test_an_error_is_raised_where_the_result_is_asked_for(limit: int) -> None:
    def fail() -> None:
        raise ValueError("no")

    job = Job[None](fail)
    Workers(limit).submit(job)
    job.wait()
    with pytest.raises(ValueError, match="no"):
        job.take()


def test_a_cancelled_job_is_done_by_who_wants_it() -> None:
    answer: Callable[[], int] = lambda: 3  # noqa: E731  # a job's work
    job = Job(answer)
    job.cancel()
    assert job.ready()
    assert job.take() == 3


EXIT = """
import threading
from torchtpu.background import Job, Workers
begun = threading.Event()
def first():
    begun.set()
    threading.main_thread().join()
    print("first", flush=True)
workers = Workers(1)
workers.submit(Job(first))
for _ in range(3):
    workers.submit(Job(lambda: print("never", flush=True)))
begun.wait(30)
"""


def test_the_end_of_the_interpreter_waits_for_what_has_begun_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("first\n", "")


def test_a_thread_that_a_daemon_starts_is_none() -> None:
    seen: list[bool] = []
    workers = Workers(1)
    job = Job(lambda: seen.append(threading.current_thread().daemon))
    starter = threading.Thread(target=lambda: workers.submit(job), daemon=True)
    starter.start()
    starter.join()
    job.wait()
    assert seen == [False]
