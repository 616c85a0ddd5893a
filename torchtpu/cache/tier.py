"""A store that may be absent, broken or slow: whatever happens to it, its user goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from torchtpu.cache.directory import Unusable, log
from torchtpu.cache.entry import BadEntry, Entry
from torchtpu.cache.key import Key
from torchtpu.cache.lock import FileLock
from torchtpu.cache.store import Store

R = TypeVar("R")

_QUICK_S = 0.05  # what a call may take without being slow


class Tier:
    """Reads and writes entries of a store that is opened at the first use; None is no store.

    The first failure is logged. What ends the tier for this process: a directory that cannot be
    used, a call that takes longer than `limit_s`, and slow calls that add up to six times that. A
    failed write ends the writing.
    """

    def __init__(
        self, name: str, open_store: Callable[[], Store] | None, limit_s: float | None = None
    ) -> None:
        self.name = name
        self.errors = 0
        self._open = open_store
        self._limit_s = limit_s
        self._patience_s = 6 * limit_s if limit_s else 0.0
        self._store: Store | None = None
        self._writable = True
        self._silent = False

    def read(self, digest: str) -> Entry | None:
        """Return a key's entry; one that is bad is removed, logged and not returned."""
        try:
            return self._call(lambda store: store.read(digest))
        except BadEntry as error:
            self.reject(digest, error)
        except OSError as error:
            self._failed("read", error)
        return None

    def reject(self, digest: str, why: Exception) -> None:
        """Remove an entry that is of no use."""
        self.errors += 1
        log.warning("[cache] %s: removed the entry %s: %s", self.name, digest, why)
        self._call(lambda store: store.discard(digest))

    def write(self, entry: Entry) -> bool:
        """Keep an entry; False where that does not work."""
        try:
            return self._writable and bool(self._call(lambda store: store.write(entry)))
        except OSError as error:
            self._writable = False
            self._failed("write", error)
        return False

    def lock(self, key: Key, wait_s: float) -> AbstractContextManager[FileLock | None]:
        """Return the lock of those who would compile a key's program."""
        made = self._call(lambda store: store.lock(key.digest, wait_s)) if self._writable else None
        return nullcontext() if made is None else made

    def nearest(self, name: str, key: Key) -> str:
        """Say in which entries a key differs from the most similar one of a program's name."""
        found = [
            (key.differs_in(about.entries), about.digest)
            for about in self._call(lambda store: list(store.abouts())) or ()
            if about.name == name
        ]
        if not found:
            return "no program of this name is there"
        names, digest = min(found, key=lambda f: len(f[0]))
        return f"{digest} differs in {', '.join(names)}"

    def _call(self, use: Callable[[Store], R]) -> R | None:
        """Use the store, opened where it is not; None where there is none, or none any more."""
        if self._open is None:
            return None
        try:
            if self._limit_s is None:
                return use(self._opened())
            return self._timed(self._limit_s, lambda: use(self._opened()))
        except (Unusable, TimeoutError) as error:
            self._open = None
            self._failed("use", error)
            return None

    def _timed(self, limit_s: float, do: Callable[[], R]) -> R:
        if self._patience_s <= 0:
            raise TimeoutError("it was slow too often")
        start = time.monotonic()
        try:
            return _within(limit_s, do)
        finally:
            self._patience_s -= max(0.0, time.monotonic() - start - _QUICK_S)

    def _opened(self) -> Store:
        if self._store is None:
            assert self._open is not None
            try:
                self._store = self._open()
            except OSError as error:
                raise Unusable(str(error)) from error
        return self._store

    def _failed(self, doing: str, error: Exception) -> None:
        self.errors += 1
        if not self._silent:
            log.warning("[cache] %s: cannot %s it, going on without: %s", self.name, doing, error)
        self._silent = True


def _within(limit_s: float, do: Callable[[], R]) -> R:
    """Return what a function returns, or raise TimeoutError; a thread is left to its fate then."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append((do(), None))
        except Exception as error:
            result.append((None, error))

    thread = threading.Thread(target=run, name="torchtpu-cache", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not result:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    value, error = result[0]
    if error is not None:
        raise error
    returned: R = value
    return returned
