"""Threads for work that needs no Python: started when there is some, ended when there is none."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Job(Generic[T]):
    """Work in another thread; `take()` waits for its result, or raises what it raised."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._future: Future[T] = Future()

    @classmethod
    def of(cls, result: T) -> Job[T]:
        """Return a job that is done."""
        job = cls(lambda: result)
        job.run()
        return job

    def run(self) -> None:
        """Do the work, in this thread."""
        if self._future.set_running_or_notify_cancel():
            try:
                self._future.set_result(self._work())
            except BaseException as error:  # raised where the result is asked for
                self._future.set_exception(error)

    def cancel(self) -> bool:
        """Do not begin it; False where it has begun."""
        return self._future.cancel()

    def ready(self) -> bool:
        """Tell whether `take()` would not wait."""
        return self._future.done()

    def wait(self) -> None:
        """Wait until it is done, whatever comes of it."""
        with suppress(CancelledError):
            self._future.exception()

    def take(self) -> T:
        """Return the result."""
        try:
            return self._future.result()
        except CancelledError:  # the interpreter is ending, and somebody still wants it
            return self._work()


class Workers:
    """At most `limit` threads; when the interpreter ends, work that has not begun is cancelled.

    They are no daemons, which the interpreter would stop inside XLA; one that waits for work would
    keep it from ending, so none does.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._jobs: deque[Job[Any]] = deque()
        self._running = 0

    def submit(self, job: Job[Any]) -> None:
        """Do some work in a thread, or at once where there is to be none."""
        if self.limit <= 0 or not threading.main_thread().is_alive():
            job.run()
            return
        with self._lock:
            self._jobs.append(job)
            start = self._running < self.limit
            self._running += start
        if start:
            # Not inherited: a thread of autograd's passes for a daemon.
            threading.Thread(target=self._work, name="torchtpu-compile", daemon=False).start()

    def settle(self) -> None:
        """Wait until there is no work."""
        with self._idle:
            self._idle.wait_for(lambda: not self._running)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not threading.main_thread().is_alive():
                    while self._jobs:
                        self._jobs.popleft().cancel()
                if not self._jobs:
                    self._running -= 1
                    self._idle.notify_all()
                    return
                job = self._jobs.popleft()
            job.run()
            del job
