"""A line on the terminal while one program takes long to compile, and the log of compiles."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread

from torchtpu import logs

AFTER_S = 2.0  # shorter compiles show nothing
_EVERY_S = 1.0
_line = Lock()  # one program at a time has the line


@contextmanager
def shown(name: str) -> Iterator[None]:
    """Log a compile, with its seconds; show a long one on stderr where that is a terminal."""
    start = time.perf_counter()
    done = Event()
    watcher = None
    if sys.stderr is not None and sys.stderr.isatty():
        watcher = Thread(target=_watch, args=(name, start, done), name="torchtpu-progress")
        watcher.start()
    try:
        yield
    finally:
        done.set()
        if watcher is not None:
            watcher.join()
    logs.compiles.info("compiled %s in %.2f s", name, time.perf_counter() - start)


def _watch(name: str, start: float, done: Event) -> None:
    if done.wait(AFTER_S):
        return
    if not _line.acquire(blocking=False):
        return
    try:
        while True:
            seconds = int(time.perf_counter() - start)
            sys.stderr.write(f"\r\x1b[K[torchtpu] compiling {name}: {seconds} s")
            sys.stderr.flush()
            if done.wait(_EVERY_S):
                break
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
    finally:
        _line.release()
