"""A lock between processes that the kernel gives back when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from torchtpu.cache.directory import log

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.001, 0.05
_warned: set[Path] = set()


class FileLock:
    """Held inside a `with`, or not: after `wait_s`, and where there are no locks, it goes on.

    The file is removed by its holder. Whoever waited for it finds that its file is no longer the
    one at the path and begins again; `fruitless` tells it to stop waiting altogether.
    """

    def __init__(self, path: Path, wait_s: float) -> None:
        self.path = path
        self.held = False
        self._wait_s = wait_s
        self._file = -1

    def __enter__(self) -> FileLock:
        end = time.monotonic() + self._wait_s
        try:
            while self._wait_until(end) and not self._settled():
                pass
        except OSError as error:
            self._close()
            if error.errno in _NO_LOCKS and self.path.parent not in _warned:
                _warned.add(self.path.parent)
                log.warning("[cache] no file locks in %s: %s", self.path.parent, error)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self.held:
            with suppress(OSError):
                self.path.unlink()
        self._close()

    def fruitless(self) -> None:
        """Tell those who wait that there will be nothing to find: they need not wait in turn."""
        if self.held:
            with suppress(OSError):
                os.ftruncate(self._file, 1)

    def _wait_until(self, end: float) -> bool:
        """Lock the file that is at the path now; False when the time is over."""
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= end:
                    self._close()
                    return False
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_S)

    def _settled(self) -> bool:
        """Tell whether to stop: it is held, or its last holder said that waiting is no use."""
        mine = os.fstat(self._file)
        with suppress(FileNotFoundError):
            self.held = os.path.samestat(mine, self.path.stat())
        if self.held:
            os.ftruncate(self._file, 0)
            return True
        self._close()
        return mine.st_size > 0

    def _close(self) -> None:
        if self._file >= 0:
            if self.held:  # a child that was forked meanwhile has the file open, too
                fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
        self._file = -1
        self.held = False
