"""Running ahead: launches that wait, in order, for programs that compile in other threads."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from torchtpu import executor
from torchtpu.background import Job
from torchtpu.eager import blame
from torchtpu.errors import FreedStorageError
from torchtpu.storage import Buffer, Deferred, launch_lock
from torchtpu.targets import Executable

MAX_LAUNCHES = 1024  # what waits keeps its arguments alive


class Result(Deferred):
    """Stands in a Buffer for an array that a waiting launch will make."""

    __slots__ = ("array", "lost", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.array: Any = None
        self.lost = ""  # why there will be no array

    def materialize(self) -> None:
        """Wait for the launch that makes it, and for those before."""
        executor.current()  # raises in a forked child, where no thread compiles
        self.queue.wait_for(self)


class _Launch:
    """One launch that waits; its targets are held weakly, as nobody may want the results."""

    __slots__ = ("arrays", "call", "holders", "job", "line", "results")

    def __init__(
        self,
        call: Any,
        arrays: Sequence[Any],
        results: Sequence[Result],
        job: Job[Executable] | None,
    ) -> None:
        self.call = call
        self.arrays = arrays
        self.results = results
        self.job = job
        self.line = blame.user_line()
        self.holders: list[weakref.ref[Buffer]] = []

    def ready(self) -> bool:
        return self.job is None or self.job.ready()

    def run(self) -> None:
        """Wait for the program, run it and hand out its results."""
        if self.job is not None:
            self.call.use(self.job.take().run)
        arrays = values(self.arrays)
        for result, array in zip(self.results, self.call.run(arrays), strict=True):
            result.array = array
        self._hand_out()

    def fail(self, reason: str) -> None:
        """Mark the results as lost."""
        for result in self.results:
            result.lost = reason
        self._hand_out()

    def _hand_out(self) -> None:
        for result, holder in zip(self.results, self.holders, strict=True):
            buffer = holder()
            if buffer is not None and buffer.array is result:
                buffer.array = result.array
                buffer.freed = result.lost


def values(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays with those in place of results that are there by now."""
    return [_value(a) if type(a) is Result else a for a in arrays]


def _value(result: Result) -> Any:
    if result.lost:
        raise FreedStorageError(f"[storage] read of freed device memory: {result.lost}")
    return result.array


class Queue:
    """Launches that wait for their programs. They run in order, when somebody launches or reads."""

    def __init__(self) -> None:
        self._launches: deque[_Launch] = deque()

    def __bool__(self) -> bool:
        return bool(self._launches)

    def add(
        self,
        call: Any,
        arrays: Sequence[Any],
        targets: Sequence[Buffer],
        job: Job[Executable] | None,
    ) -> None:
        """Let a launch wait, for its program too if there is a job; its targets hold Results."""
        launch = _Launch(call, arrays, [Result(self) for _ in targets], job)
        for result, target in zip(launch.results, targets, strict=True):
            target.array = result
            launch.holders.append(weakref.ref(target))
        self._launches.append(launch)

    def poll(self) -> None:
        """Run what need not wait any more; raises what a program raised."""
        while self._launches and (self._launches[0].ready() or len(self._launches) >= MAX_LAUNCHES):
            self._run_first()

    def drain(self) -> None:
        """Run everything, waiting for programs; raises what the first of them raised."""
        with launch_lock:
            while self._launches:
                self._run_first()

    def wait_for(self, result: Result) -> None:
        """Run launches up to the one that makes a result."""
        with launch_lock:
            while result.array is None and not result.lost and self._launches:
                self._run_first()

    def _run_first(self) -> None:
        launch = self._launches[0]
        lost = next((a.lost for a in launch.arrays if type(a) is Result and a.lost), "")
        if lost:  # said already, by the launch that failed
            self._launches.popleft().fail(lost)
            return
        try:
            launch.run()
        except KeyboardInterrupt:
            raise  # it may be run yet
        except BaseException as error:
            self._launches.popleft().fail(f"the program that computes it failed: {error}")
            where = f", called from {launch.line}" if launch.line else " (backward)"
            error.add_note(f"[torchtpu] in {launch.call.name}{where}")
            raise
        self._launches.popleft()


queue = Queue()
