"""Where the processes of a world say what they are about to do together, before any of them does.

A record per collective: each member says there what it calls, and the last to come numbers it, so
that all launch in one order. Programs that wait for each other in different orders never end.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

GAVE_UP = (1 << 64) - 1  # the signature of whoever waits no more
_RECORDS = 256  # collectives that a world has under way at once
_TEXT_BYTES = 240
_HEAD = struct.Struct("@QII")  # when complete, its number, counted from 1; members here; gone again
_SAID = struct.Struct("@QHH")  # signature, lengths of call and payload
_COUNT = struct.Struct("@Q")


@dataclass(frozen=True, slots=True)
class Said:
    """What a member calls: a signature that all must share, words for people, and its own sizes."""

    signature: int
    call: str
    payload: bytes = b""


class Stuck(Exception):
    """Another process has stopped while it held the board's lock."""


class Full(Exception):
    """So many collectives are under way that there is no room for another."""


class Board(Protocol):
    """What members say of collectives, by key (never 0, never used twice)."""

    def post(self, key: int, place: int, members: int, said: Said) -> None:
        """Say as member `place` of `members` what this process calls; Full: try again later."""

    def read(self, key: int, members: int) -> tuple[int, list[Said]] | None:
        """Return a record's number and what all have said; None while somebody is missing."""

    def present(self, key: int, members: int) -> list[Said | None]:
        """Return what has been said so far."""

    def withdraw(self, key: int, place: int, members: int, why: str) -> bool:
        """Take back what this process said, so that whoever comes later learns why.

        False where everybody is there by now: then it holds.
        """

    def done(self, key: int, members: int) -> None:
        """Forget a record: this process has read it."""

    def is_alive(self, rank: int) -> bool:
        """Tell whether the process of a rank still runs."""

    def close(self) -> None:
        """Leave."""


class SharedBoard:
    """A board in memory that the processes of one machine share."""

    def __init__(
        self, rank: int, size: int, path: str | None = None, patience_s: float = 60.0
    ) -> None:
        """Make a board (its `path` is for the others), or open the one at `path`.

        patience_s: how long another may hold the lock, which takes microseconds unless it stops.
        """
        self._patience_s = patience_s
        self._area = _SAID.size + _TEXT_BYTES + 16 * size  # of a member in a record
        self._record = _HEAD.size + size * self._area
        self._records_at = _COUNT.size * (1 + _RECORDS)  # behind the last number, and the keys
        nbytes = self._records_at + _RECORDS * self._record
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        if path is None:
            self._fd, self.path = tempfile.mkstemp(prefix="torchtpu-", dir=folder)
            os.ftruncate(self._fd, nbytes)
        else:
            self._fd, self.path = os.open(path, os.O_RDWR), path
        self._memory = mmap.mmap(self._fd, nbytes)
        self._lives_at, self._rank = nbytes + 1, rank
        self._thread_lock = threading.Lock()
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, self._lives_at + rank)  # gone when the process is

    def unlink(self) -> None:
        """Remove the file's name, when everybody has opened it."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._thread_lock:
            end = 0.0
            while not self._lock():
                os.sched_yield()
                end = end or time.monotonic() + self._patience_s
                if time.monotonic() > end:
                    raise Stuck
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, 0)

    def _lock(self) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            return False
        return True

    def _find(self, key: int) -> int:
        """Return where a key's record begins, 0 where there is none."""
        wanted, at, end = _COUNT.pack(key), _COUNT.size, self._records_at
        while True:
            at = self._memory.find(wanted, at, end)
            if at < 0:
                return 0
            if not at % _COUNT.size:
                return self._records_at + (at // _COUNT.size - 1) * self._record
            at += 1

    def post(self, key: int, place: int, members: int, said: Said) -> None:
        with self._locked():
            at = self._find(key) or self._add(key)
            self._write(at, place, said)
            number, here, gone = _HEAD.unpack_from(self._memory, at)
            if here + 1 == members:
                (number,) = _COUNT.unpack_from(self._memory, 0)
                number += 1
                _COUNT.pack_into(self._memory, 0, number)
            _HEAD.pack_into(self._memory, at, number, here + 1, gone)

    def _add(self, key: int) -> int:
        at = self._find(0)
        if not at:
            raise Full
        self._memory[at : at + self._record] = bytes(self._record)
        slot = (at - self._records_at) // self._record
        _COUNT.pack_into(self._memory, _COUNT.size * (1 + slot), key)
        return at

    def read(self, key: int, members: int) -> tuple[int, list[Said]] | None:
        at = self._find(key)
        if not at:
            return None
        (number,) = _COUNT.unpack_from(self._memory, at)
        return (number, [self._said(at, place) for place in range(members)]) if number else None

    def _said(self, at: int, place: int) -> Said:
        area = at + _HEAD.size + place * self._area
        signature, length, extra = _SAID.unpack_from(self._memory, area)
        start, end = area + _SAID.size, area + _SAID.size + length
        call = self._memory[start:end].decode(errors="replace")
        return Said(signature, call, self._memory[end : end + extra])

    def present(self, key: int, members: int) -> list[Said | None]:
        at = self._find(key)
        if not at:
            return [None] * members
        found = (self._said(at, place) for place in range(members))
        return [said if said.call else None for said in found]

    def withdraw(self, key: int, place: int, members: int, why: str) -> bool:
        with self._locked():
            at = self._find(key)
            if not at or _COUNT.unpack_from(self._memory, at)[0]:
                return False
            self._write(at, place, Said(GAVE_UP, why))
            _, here, gone = _HEAD.unpack_from(self._memory, at)
            self._leave(at, members, here, gone + 1)
            return True

    def _write(self, at: int, place: int, said: Said) -> None:
        text = said.call.encode()[:_TEXT_BYTES]
        area = at + _HEAD.size + place * self._area
        _SAID.pack_into(self._memory, area, said.signature, len(text), len(said.payload))
        start = area + _SAID.size
        self._memory[start : start + len(text) + len(said.payload)] = text + said.payload

    def _leave(self, at: int, members: int, here: int, gone: int) -> None:
        (number,) = _COUNT.unpack_from(self._memory, at)
        _HEAD.pack_into(self._memory, at, number, here, gone)
        if gone == members:
            slot = (at - self._records_at) // self._record
            _COUNT.pack_into(self._memory, _COUNT.size * (1 + slot), 0)

    def done(self, key: int, members: int) -> None:
        with self._locked():
            at = self._find(key)
            if not at:
                return
            _, here, gone = _HEAD.unpack_from(self._memory, at)
            self._leave(at, members, here, gone + 1)

    def is_alive(self, rank: int) -> bool:
        if rank == self._rank:
            return True
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._lives_at + rank)
        except OSError:
            return True
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._lives_at + rank)
        return False

    def close(self) -> None:
        self.unlink()
        os.close(self._fd)


class StoreBoard:
    """A board in torch's store, for the processes of several machines."""

    def __init__(self, rank: int, store: Any, beat_s: float = 1.0, silence_s: float = 10.0) -> None:
        """Use a store of torch; a rank is taken for dead after `silence_s` without a beat."""
        self._store = store
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._silence_s = silence_s
        self._lock = threading.Lock()  # a store answers one question at a time
        self._stopped = threading.Event()
        self._beating = threading.Thread(target=self._beat, args=(rank, beat_s), daemon=True)
        self._beating.start()

    def _beat(self, rank: int, beat_s: float) -> None:
        count = 0
        while not self._stopped.wait(beat_s):
            count += 1
            with suppress(Exception), self._lock:
                self._store.set(f"beat/{rank}", str(count))

    def post(self, key: int, place: int, members: int, said: Said) -> None:
        text = said.call.encode()
        packed = _SAID.pack(said.signature, len(text), len(said.payload)) + text + said.payload
        with self._lock:
            self._store.set(f"{key}/{place}", packed)
            if self._store.add(f"{key}/here", 1) == members:
                number = self._store.add("numbers", 1)
                self._store.set(f"{key}/number", str(number))

    def read(self, key: int, members: int) -> tuple[int, list[Said]] | None:
        with self._lock:
            if not self._store.check([f"{key}/number"]):
                return None
            number = int(self._store.get(f"{key}/number"))
            said = [self._store.get(f"{key}/{place}") for place in range(members)]
        return number, [_unpacked(s) for s in said]

    def present(self, key: int, members: int) -> list[Said | None]:
        with self._lock:
            there = [self._store.check([f"{key}/{place}"]) for place in range(members)]
            said = [self._store.get(f"{key}/{n}") if is_ else None for n, is_ in enumerate(there)]
        return [None if s is None else _unpacked(s) for s in said]

    def withdraw(self, key: int, place: int, members: int, why: str) -> bool:
        text = why.encode()
        with self._lock:
            if self._store.add(f"{key}/here", 0) == members:
                return False
            self._store.set(f"{key}/{place}", _SAID.pack(GAVE_UP, len(text), 0) + text)
            return True

    def done(self, key: int, members: int) -> None:
        with self._lock:
            if self._store.add(f"{key}/gone", 1) == members:
                names = [*map(str, range(members)), "here", "number", "gone"]
                for name in names:
                    self._store.delete_key(f"{key}/{name}")

    def is_alive(self, rank: int) -> bool:
        with self._lock:
            beat = b""
            if self._store.check([f"beat/{rank}"]):
                beat = self._store.get(f"beat/{rank}")
        before, since = self._heard.get(rank, (None, 0.0))
        if beat != before:
            self._heard[rank] = beat, time.monotonic()
            return True
        return time.monotonic() - since < self._silence_s

    def close(self) -> None:
        self._stopped.set()
        self._beating.join()


def _unpacked(packed: bytes) -> Said:
    signature, length, extra = _SAID.unpack_from(packed, 0)
    text, rest = packed[_SAID.size : _SAID.size + length], packed[_SAID.size + length :]
    return Said(signature, text.decode(errors="replace"), rest[:extra])


def differences(said: Sequence[Said], ranks: Sequence[int]) -> str:
    """Say who calls what, the members that call the same in one line."""
    lines: dict[str, list[int]] = {}
    for rank, one in zip(ranks, said, strict=True):
        lines.setdefault(one.call, []).append(rank)
    return "\n".join(
        f"  rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}: {call}"
        for call, who in lines.items()
    )
