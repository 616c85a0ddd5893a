"""Where the processes of a world say what they are about to do together, before any of them does.

A record per collective: each member leaves the signature of what it calls, and the last to come
numbers the record, so that all launch in one order (programs that wait for each other in different
orders never end). Words for people are added when somebody has to be told.
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
from typing import Any, Protocol

Ended = list[tuple[int, int]]  # records that a process needs no more, and their members
GAVE_UP = (1 << 64) - 1  # the signature of whoever waits no more
_RECORDS = 256  # collectives that a world has under way at once
_TEXT_BYTES = 240
_COUNT = struct.Struct("@Q")
_LENGTHS = struct.Struct("@HH")  # of payload and text


class Stuck(Exception):
    """Another process has stopped while it held the board's lock."""


class Full(Exception):
    """So many collectives are under way that there is no room for another."""


class Board(Protocol):
    """What members say of collectives, by key (never 0, never used twice).

    A record is handled by what `post` returns until this process has ended it.
    """

    def post(
        self, key: int, place: int, members: int, signature: int, payload: bytes, ended: Ended
    ) -> int:
        """Say as member `place` of `members` what this process calls; return the record's handle.

        payload: sizes of this member's own, at most 16 bytes per process of the world. ended is
        emptied. Raises Full: try again later.
        """

    def read(self, record: int, members: int) -> tuple[int, Sequence[int]] | None:
        """Return a record's number and all signatures; None while somebody is missing."""

    def payloads(self, record: int, members: int) -> list[bytes]:
        """Return the payloads of a complete record."""

    def explain(self, record: int, place: int, text: str) -> None:
        """Say in words what this process calls."""

    def texts(self, record: int, members: int) -> list[str | None]:
        """Return what members have said in words: None: not here; empty: no words so far."""

    def is_begun(self, key: int, place: int) -> bool:
        """Tell whether member `place` has come to the record `key`."""

    def withdraw(self, record: int, place: int, members: int, why: str) -> bool:
        """Take back what this process said, so that whoever comes later learns why.

        False where everybody is there by now: then it holds.
        """

    def is_alive(self, rank: int) -> bool:
        """Tell whether the process of a rank still runs."""

    def close(self) -> None:
        """Leave."""


class SharedBoard:
    """A board in memory that the processes of one machine share.

    Behind the last number given and the keys stand the records: number, members here and gone
    again, the members' signatures, and an area for payload and text of each.
    """

    def __init__(
        self, rank: int, size: int, path: str | None = None, patience_s: float = 60.0
    ) -> None:
        """Make a board (its `path` is for the others), or open the one at `path`.

        patience_s: how long another may hold the lock, which takes microseconds unless it stops.
        """
        self._patience_s = patience_s
        self._heads = [struct.Struct(f"@QII{n}Q") for n in range(size + 1)]
        self._texts_at = _LENGTHS.size + 4 + 16 * size  # in an area, behind the payload
        self._area = self._texts_at + _TEXT_BYTES
        self._record = self._heads[size].size + size * self._area
        self._areas_at = self._heads[size].size
        self._records_at = _COUNT.size * (1 + _RECORDS)
        self._empty = bytes(self._record)
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
                time.sleep(0)
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

    def post(
        self, key: int, place: int, members: int, signature: int, payload: bytes, ended: Ended
    ) -> int:
        memory, head = self._memory, self._heads[0]
        with self._locked():
            while ended:
                self._leave(*ended.pop())
            at = self._find(key) or self._add(key, members)
            _COUNT.pack_into(memory, at + head.size + _COUNT.size * place, signature)
            if payload:
                area = self._area_at(at, place)
                _LENGTHS.pack_into(memory, area, len(payload), 0)
                memory[area + _LENGTHS.size : area + _LENGTHS.size + len(payload)] = payload
            number, here, gone = head.unpack_from(memory, at)
            if here + 1 == members:
                number = _COUNT.unpack_from(memory, 0)[0] + 1
                _COUNT.pack_into(memory, 0, number)
            head.pack_into(memory, at, number, here + 1, gone)
        return at

    def _add(self, key: int, members: int) -> int:
        at = self._find(0)
        if not at:
            raise Full
        used = self._areas_at + members * self._area
        self._memory[at : at + used] = self._empty[:used]
        slot = (at - self._records_at) // self._record
        _COUNT.pack_into(self._memory, _COUNT.size * (1 + slot), key)
        return at

    def _leave(self, at: int, members: int) -> None:
        """One more has read a record; behind the last, it is free."""
        number, here, gone = self._heads[0].unpack_from(self._memory, at)
        self._heads[0].pack_into(self._memory, at, number, here, gone + 1)
        if gone + 1 == members:
            slot = (at - self._records_at) // self._record
            _COUNT.pack_into(self._memory, _COUNT.size * (1 + slot), 0)

    def _area_at(self, at: int, place: int) -> int:
        return at + self._areas_at + place * self._area

    def read(self, record: int, members: int) -> tuple[int, Sequence[int]] | None:
        if not _COUNT.unpack_from(self._memory, record)[0]:
            return None
        number, _, _, *signatures = self._heads[members].unpack_from(self._memory, record)
        return number, signatures

    def payloads(self, record: int, members: int) -> list[bytes]:
        found = []
        for place in range(members):
            area = self._area_at(record, place)
            start = area + _LENGTHS.size
            found.append(self._memory[start : start + _LENGTHS.unpack_from(self._memory, area)[0]])
        return found

    def explain(self, record: int, place: int, text: str) -> None:
        area, said = self._area_at(record, place), text.encode()[:_TEXT_BYTES]
        start = area + self._texts_at
        self._memory[start : start + len(said)] = said
        (length, _) = _LENGTHS.unpack_from(self._memory, area)
        _LENGTHS.pack_into(self._memory, area, length, len(said))

    def texts(self, record: int, members: int) -> list[str | None]:
        _, _, _, *signatures = self._heads[members].unpack_from(self._memory, record)
        return [self._text(record, n) if s else None for n, s in enumerate(signatures)]

    def _text(self, at: int, place: int) -> str:
        area = self._area_at(at, place)
        start = area + self._texts_at
        length = _LENGTHS.unpack_from(self._memory, area)[1]
        return self._memory[start : start + length].decode(errors="replace")

    def is_begun(self, key: int, place: int) -> bool:
        at = self._find(key)
        if not at:
            return False
        signature = at + self._heads[0].size + _COUNT.size * place
        return bool(_COUNT.unpack_from(self._memory, signature)[0])

    def withdraw(self, record: int, place: int, members: int, why: str) -> bool:
        del members
        with self._locked():
            if _COUNT.unpack_from(self._memory, record)[0]:
                return False
            self.explain(record, place, why)
            signature = record + self._heads[0].size + _COUNT.size * place
            _COUNT.pack_into(self._memory, signature, GAVE_UP)
            return True

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


_COMPLETE, _GIVEN_UP = b"complete", b"given up"  # states of a record, whichever comes first


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

    def post(
        self, key: int, place: int, members: int, signature: int, payload: bytes, ended: Ended
    ) -> int:
        with self._lock:
            while ended:
                self._leave(*ended.pop())
            self._store.set(f"{key}/{place}", _COUNT.pack(signature) + payload)
            if self._store.add(f"{key}/here", 1) == members:
                self._become(key, _COMPLETE)
                self._store.set(f"{key}/number", str(self._store.add("numbers", 1)))
        return key

    def _leave(self, key: int, members: int) -> None:
        if self._store.add(f"{key}/gone", 1) == members:
            places = [str(place) for place in range(members)]
            for name in [
                *places,
                *(f"{p}/text" for p in places),
                "here",
                "number",
                "state",
                "gone",
            ]:
                self._store.delete_key(f"{key}/{name}")

    def read(self, record: int, members: int) -> tuple[int, Sequence[int]] | None:
        with self._lock:
            if not self._store.check([f"{record}/number"]):
                return None
            number = int(self._store.get(f"{record}/number"))
            said = [self._store.get(f"{record}/{place}") for place in range(members)]
            gave_up = [] if self._become(record, _COMPLETE) == _COMPLETE else [GAVE_UP]
        return number, [_COUNT.unpack_from(s)[0] for s in said] + gave_up

    def _become(self, record: int, state: bytes) -> bytes:
        """Take on a state if the record has none yet; return the one that it has."""
        found: bytes = self._store.compare_set(f"{record}/state", "", state.decode())
        return found

    def payloads(self, record: int, members: int) -> list[bytes]:
        with self._lock:
            said = [self._store.get(f"{record}/{place}") for place in range(members)]
        return [s[_COUNT.size :] for s in said]

    def explain(self, record: int, place: int, text: str) -> None:
        with self._lock:
            self._store.set(f"{record}/{place}/text", text[:_TEXT_BYTES])

    def texts(self, record: int, members: int) -> list[str | None]:
        with self._lock:
            return [
                self._found(f"{record}/{place}/text") or ""
                if self._store.check([f"{record}/{place}"])
                else None
                for place in range(members)
            ]

    def _found(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def is_begun(self, key: int, place: int) -> bool:
        with self._lock:
            return bool(self._store.check([f"{key}/{place}"]))

    def withdraw(self, record: int, place: int, members: int, why: str) -> bool:
        del members
        self.explain(record, place, why)
        with self._lock:
            return self._become(record, _GIVEN_UP) == _GIVEN_UP

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


def differences(texts: Sequence[str], ranks: Sequence[int]) -> str:
    """Say who calls what, the members that call the same in one line."""
    lines: dict[str, list[int]] = {}
    for rank, text in zip(ranks, texts, strict=True):
        lines.setdefault(text, []).append(rank)
    return "\n".join(
        f"  rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}: {text}"
        for text, who in lines.items()
    )
