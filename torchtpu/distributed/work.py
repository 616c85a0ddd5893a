"""What a collective returns: torch's Work, honest about what has been launched and what is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:

    class _Work:
        pass

else:
    _Work = dist.Work


class Work(_Work):
    """A collective that was asked for; `wait` returns when its result is there, or raises."""

    def __init__(
        self, wait: Callable[[Work, float | None], None], outputs: Sequence[torch.Tensor]
    ) -> None:
        super().__init__()
        self._wait = wait
        self._outputs = list(outputs)
        self._future: torch.futures.Future[Any] | None = None
        self.launched: list[Any] | None = None  # the arrays of its results
        self.error: Exception | None = None
        self.source = -1  # of a message received: the sender's place in the group

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result; raises what went wrong, on any rank.

        timeout: beside the group's, which holds from the call on; None or 0: that alone.
        """
        seconds = timeout.total_seconds() if timeout else None
        self._wait(self, seconds or None)
        return True

    def is_launched(self) -> bool:
        """Tell whether it has been launched, or has failed."""
        return self.launched is not None or self.error is not None

    def is_completed(self) -> bool:
        """Tell whether the result is there, or an error."""
        if self.error is not None:
            return True
        return self.launched is not None and all(
            a.is_deleted() or a.is_ready() for a in self.launched
        )

    def is_success(self) -> bool:
        """Tell whether the result is there."""
        return self.error is None and self.is_completed()

    def exception(self) -> Exception | None:
        """Return what went wrong, None if nothing did so far."""
        return self.error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that the collective writes."""
        return self._outputs

    def synchronize(self) -> None:
        """Wait for the result."""
        self.wait()

    def _source_rank(self) -> int:
        """Return who sent what was received, by place in the group."""
        return self.source

    source_rank = _source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the list of result tensors.

        Its error is one for C++ too, which reads what `set_exception` puts there as tensors: only
        what a callback raises is.
        """
        if self._future is None:
            self._over: torch.futures.Future[None] = torch.futures.Future()
            self._future = self._over.then(lambda _: self._outcome())
            if self.is_launched():
                self._over.set_result(None)
        return self._future

    def _outcome(self) -> list[torch.Tensor]:
        if self.error is not None:
            raise self.error
        return self._outputs

    def finish(self, launched: list[Any] | None, error: Exception | None = None) -> None:
        """Say that it is launched, its results being these arrays, or that it failed.

        What hangs on the future runs in a thread of its own: it may wait for other collectives,
        and whoever finishes this one has to launch them.
        """
        self.launched, self.error = launched, error
        if self._future is not None and not self._over.done():
            set_result = self._over.set_result
            name = "tpu_dist future"
            threading.Thread(target=set_result, args=(None,), daemon=True, name=name).start()


def done(outputs: Sequence[torch.Tensor]) -> Work:
    """Return a work that is done."""
    work = Work(lambda *_: None, outputs)
    work.finish([])
    return work


class Works(Work):
    """Several collectives, as one work."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__(_wait_for_all, [t for work in works for t in work.result()])
        self.parts = list(works)

    def is_completed(self) -> bool:
        """Tell whether all results are there, or an error."""
        return all(work.is_completed() for work in self.parts)

    def is_success(self) -> bool:
        """Tell whether all results are there."""
        return all(work.is_success() for work in self.parts)


def _wait_for_all(works: Work, seconds: float | None) -> None:
    assert isinstance(works, Works)
    for work in works.parts:
        work.wait(timedelta(seconds=seconds) if seconds else None)
    works.finish([])
