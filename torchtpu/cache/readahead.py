"""Loads, in another thread, the programs that the last run of a script has used.

The list of them is an entry of the host's store, keyed by the command line. It is a guess: what is
not on it is loaded when it is asked for.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from torchtpu.background import Job, Workers
from torchtpu.cache.directory import log
from torchtpu.cache.encoding import Unencodable
from torchtpu.cache.entry import Entry
from torchtpu.cache.key import Entries, Key
from torchtpu.cache.tier import Tier

T = TypeVar("T")

_BOUND = 64  # programs; somebody waits for those at the start of a run


class Readahead(Generic[T]):
    """Programs that are loaded before they are asked for; none until `start`."""

    def __init__(self, host: Tier) -> None:
        self._host = host
        self._key: Key | None = None
        self._listed: list[str] = []
        self._used: dict[str, None] = {}
        self._jobs: dict[str, Job[T | None]] = {}
        self._workers = Workers(1)

    def start(self, about: Callable[[], Entries], load: Callable[[bytes], T]) -> None:
        """Begin with what this command line's last run has used.

        `load` makes an executable of an entry's bytes. `about` returns the rest of the list's key:
        programs of another version or target are of no use. Both are called in the thread.
        """
        run = _command_line()
        if run:
            self._workers.submit(Job(lambda: self._begin(run, about, load)))
            atexit.register(self._keep)

    def take(self, digest: str) -> T | None:
        """Return what is loaded, or is being loaded; None leaves it to the caller."""
        if digest not in self._used and len(self._used) < _BOUND:
            self._used[digest] = None
            count = len(self._used)
            if digest not in self._listed and count & (count - 1) == 0:  # it may end by a signal
                self._workers.submit(Job(lambda: self._keep(*self._listed)))
        job: Job[T | None] | None = self._jobs.pop(digest, None)
        return None if job is None or job.cancel() else job.take()

    def _begin(
        self, run: Entries, about: Callable[[], Entries], load: Callable[[bytes], T]
    ) -> None:
        try:
            self._key = Key(run + about())
        except Unencodable:
            return
        entry = self._host.read(self._key.digest)
        if entry is not None:
            self._listed = entry.payload.decode("ascii").split()[:_BOUND]
        self._jobs = {d: Job(self._loading(d, load)) for d in self._listed if d not in self._used}
        for job in list(self._jobs.values()):
            self._workers.submit(job)

    def _loading(self, digest: str, load: Callable[[bytes], T]) -> Callable[[], T | None]:
        def loaded() -> T | None:
            entry = self._host.read(digest)
            try:
                return load(entry.payload) if entry else None
            except Exception as error:  # whoever asks for it meets the same, and says so
                log.info("[cache] %s was not loaded ahead: %s", digest, error)
                return None

        return loaded

    def _keep(self, *more: str) -> None:
        """Write the list of what was used, unless it is the one that was found."""
        used = list(dict.fromkeys([*self._used, *more]))[:_BOUND]
        if self._key is not None and self._used and set(used) != set(self._listed):
            name = f"list of programs: {os.path.basename(sys.argv[0])}"
            self._host.write(Entry.of(self._key, name, "\n".join(used).encode()))


def _command_line() -> Entries:
    """Return what names this run to its successors; empty for code that no file holds."""
    if not sys.argv or sys.argv[0] in ("", "-c"):
        return ()
    script = os.path.abspath(sys.argv[0])
    return (("command", script), *((f"argument {n}", a) for n, a in enumerate(sys.argv[1:])))
