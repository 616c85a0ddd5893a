"""A directory of cache entries: read, written in one step, bounded, cleaned.

One file per entry, named by its key's digest; its last use is its modification time. Nothing here
trusts a file: it is read whole and checked, and one that is not intact is removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path

from torchtpu.cache import directory
from torchtpu.cache.entry import VERSION, BadEntry, Entry, pack, read_about, unpack
from torchtpu.cache.lock import FileLock

SUFFIX = ".exe"
_TEMPORARY, _LOCK = ".tmp", ".lock"
_STALE_S = 3600.0  # a temporary file this old has lost its writer
_LAST = 500  # entries that a new one is compared with
_KEPT = 0.9  # of the bound, after entries have been removed


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A file of a store."""

    path: Path
    nbytes: int
    used_s: float  # since the epoch


class Store:
    """The entries below one directory; `bound_bytes` of 0 is no bound."""

    def __init__(self, path: Path, *, bound_bytes: int = 0, shared: bool = False) -> None:
        directory.prepare(path, shared=shared)
        self.path = path / f"v{VERSION}"
        directory.prepare(self.path, shared=shared)
        self._bound_bytes = bound_bytes
        self._until_look_bytes = 0  # may be written before the sizes are added up again

    def file(self, digest: str) -> Path:
        """Return where the entry of a key lies."""
        return self.path / f"{digest}{SUFFIX}"

    def lock(self, digest: str, wait_s: float) -> FileLock:
        """Return the lock of those who would compile the program of a key."""
        return FileLock(self.path / f"{digest}{_LOCK}", wait_s)

    def read(self, digest: str) -> Entry | None:
        """Return the entry of a key, None where there is none.

        Raises BadEntry for a file that is not intact or another key's, and OSError.
        """
        path = self.file(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        entry = unpack(data)
        if entry.digest != digest:
            raise BadEntry(f"it is the entry of another key, {entry.digest}")
        with suppress(OSError):
            os.utime(path)
        return entry

    def write(self, entry: Entry) -> bool:
        """Add or replace an entry in one step; False where it is larger than the store may be.

        Raises OSError, and then leaves nothing behind. A crash of the machine may leave any bytes
        in the file: the checksum finds that, so nothing here waits for the disk.
        """
        data = pack(entry)
        if self._bound_bytes and len(data) > self._bound_bytes * _KEPT:
            return False
        self._make_room(len(data))
        temporary = self.path / f"{os.getpid()}-{os.urandom(8).hex()}{_TEMPORARY}"
        try:
            temporary.write_bytes(data)
            temporary.replace(self.file(entry.digest))
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        return True

    def discard(self, digest: str) -> None:
        """Remove an entry, if it is there and may be removed."""
        with suppress(OSError):
            self.file(digest).unlink()

    def list(self, suffix: str = SUFFIX) -> Iterator[Found]:
        """Yield the files of the entries; one that goes meanwhile is left out."""
        with os.scandir(self.path) as found:
            for item in found:
                if item.name.endswith(suffix):
                    with suppress(FileNotFoundError):
                        about = item.stat(follow_symlinks=False)
                        yield Found(
                            path=Path(item.path), nbytes=about.st_size, used_s=about.st_mtime
                        )

    def abouts(self) -> Iterator[Entry]:
        """Yield what the last used entries say of themselves; bad ones are left out."""
        for found in nlargest(_LAST, self.list(), key=lambda f: f.used_s):
            with suppress(BadEntry, OSError):
                yield self.about(found)

    def about(self, found: Found) -> Entry:
        """Return an entry without payload, unchecked; raises BadEntry and OSError."""
        with found.path.open("rb") as file:
            return read_about(file)

    def verify(self, found: Found) -> str:
        """Say what is wrong with an entry's file; empty where nothing is."""
        try:
            entry = unpack(found.path.read_bytes())
        except (BadEntry, OSError) as error:
            return str(error)
        is_own = found.path.name == f"{entry.digest}{SUFFIX}"
        return "" if is_own else f"it is the entry of another key, {entry.digest}"

    def trim(self, bound_bytes: int) -> int:
        """Remove the least recently used entries beyond a bound; return the bytes that are left."""
        entries = sorted(self.list(), key=lambda f: f.used_s, reverse=True)
        kept_bytes = 0
        for found in entries:
            if kept_bytes + found.nbytes > bound_bytes:
                with suppress(OSError):
                    found.path.unlink()
            else:
                kept_bytes += found.nbytes
        return kept_bytes

    def remove_stale(self) -> None:
        """Remove what writers and holders of locks left behind when they were killed."""
        before = time.time() - _STALE_S
        for found in self.list(_TEMPORARY):
            if found.used_s < before:
                with suppress(OSError):
                    found.path.unlink()
        for found in self.list(_LOCK):
            if found.used_s < before:
                with FileLock(found.path, 0):  # removes it, unless somebody holds it
                    pass

    def _make_room(self, nbytes: int) -> None:
        """Add the sizes up now and then, and let the oldest go; one process at a time does."""
        self._until_look_bytes -= nbytes
        if not self._bound_bytes or self._until_look_bytes >= 0:
            return
        with FileLock(self.path / "trim.lock", 0) as lock:
            if lock.held:
                self.remove_stale()
                total_bytes = sum(f.nbytes for f in self.list())
                if total_bytes + nbytes > self._bound_bytes:
                    total_bytes = self.trim(int(self._bound_bytes * _KEPT) - nbytes)
                self._until_look_bytes = (self._bound_bytes - total_bytes) // 16
