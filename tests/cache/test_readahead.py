"""A run loads ahead what the last run of its command line has used; a wrong guess costs nothing."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from torchtpu.cache.encoding import Unencodable
from torchtpu.cache.entry import Entry
from torchtpu.cache.key import Entries, Key
from torchtpu.cache.readahead import Readahead
from torchtpu.cache.store import Store
from torchtpu.cache.tier import Tier

ABOUT: Entries = (("version", "1"),)
KEYS = [Key((("n", str(n)),)) for n in range(5)]


@pytest.fixture(autouse=True)
def _script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--small"])


class Run:
    """One process with programs in its host's store."""

    def __init__(self, folder: Path, about: Entries = ABOUT) -> None:
        self.store = Store(folder)
        for key in KEYS:
            self.store.write(Entry.of(key, "add", key.digest.encode()))
        self.loaded: list[str] = []
        self.ahead: Readahead[str] = Readahead(Tier("host", lambda: self.store))
        self.ahead.start(lambda: about, self._load)

    def _load(self, data: bytes) -> str:
        self.loaded.append(data.decode())
        return data.decode()

    def settled(self) -> Run:
        """Wait for the thread."""
        self.ahead._workers.settle()
        return self

    def use(self, *numbers: int) -> list[bool]:
        """Ask for programs; tell which of them had been loaded."""
        return [self.ahead.take(KEYS[n].digest) is not None for n in numbers]

    def end(self) -> None:
        """Do what the interpreter's end does."""
        self.settled()
        self.ahead._keep()


def test_the_next_run_has_what_this_one_used(tmp_path: Path) -> None:
    first = Run(tmp_path).settled()
    assert first.use(0, 2) == [False, False]
    first.end()
    second = Run(tmp_path).settled()
    assert sorted(second.loaded) == sorted(KEYS[n].digest for n in (0, 2))
    assert second.use(0, 1, 2, 2) == [True, False, True, False]  # in memory after the first time
    second.end()
    assert Run(tmp_path).settled().use(0, 1, 2) == [True, True, True]


def test_a_run_that_used_what_was_listed_writes_nothing_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", lambda end, *args: ends.append(partial(end, *args)))
    for _ in range(2):
        run = Run(tmp_path).settled()
        run.use(0, 1)
        run.settled()
        kept: list[Entry] = []
        monkeypatch.setattr(run.ahead._host, "write", kept.append)
        ends[-1]()
    assert kept == []


def test_what_a_run_no_longer_uses_leaves_the_list_at_its_end(tmp_path: Path) -> None:
    first = Run(tmp_path).settled()
    first.use(0, 1)
    first.end()
    second = Run(tmp_path).settled()
    second.use(3)
    second.settled()  # killed here: the longer list is better than none
    third = Run(tmp_path).settled()
    assert third.use(0, 1, 3) == [True, True, True]
    fourth = Run(tmp_path).settled()
    fourth.use(3)
    fourth.end()
    assert Run(tmp_path).settled().use(0, 1, 3) == [False, False, True]


def test_another_version_or_command_line_has_its_own_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(tmp_path).settled()
    first.use(0)
    first.end()
    assert Run(tmp_path, (("version", "2"),)).settled().loaded == []
    monkeypatch.setattr(sys, "argv", ["train.py", "--large"])
    assert Run(tmp_path).settled().loaded == []
    monkeypatch.setattr(sys, "argv", ["-c"])
    code = Run(tmp_path).settled()
    code.use(0)
    code.end()
    assert Run(tmp_path).settled().loaded == []


def test_entries_that_are_gone_or_do_not_load_are_left_to_the_caller(tmp_path: Path) -> None:
    first = Run(tmp_path).settled()
    first.use(0, 1)
    first.end()

    class Worse(Run):
        def _load(self, data: bytes) -> str:
            if data.decode() == KEYS[1].digest:
                raise RuntimeError("of another XLA")
            self.store.discard(KEYS[0].digest)
            return super()._load(data)

    worse = Worse(tmp_path).settled()
    assert worse.use(1) == [False]
    Store(tmp_path).discard(KEYS[0].digest)
    assert not Readahead(Tier("none", None)).take(KEYS[0].digest)


def test_what_has_begun_is_waited_for_and_what_has_not_is_the_callers(tmp_path: Path) -> None:
    first = Run(tmp_path).settled()
    first.use(0, 1)
    first.end()
    begun, go = Event(), Event()

    class Slow(Run):
        def _load(self, data: bytes) -> str:
            begun.set()
            go.wait(20)
            return super()._load(data)

    slow = Slow(tmp_path)
    assert begun.wait(20)
    assert slow.use(1) == [False]
    go.set()
    assert slow.use(0) == [True]
    slow.settled()
    assert slow.loaded == [KEYS[0].digest]


def test_without_a_key_nothing_is_read_or_kept(tmp_path: Path) -> None:
    def unknown() -> Entries:
        raise Unencodable("no sources")

    run = Run(tmp_path).settled()
    run.use(0)
    run.end()
    ahead: Readahead[str] = Readahead(Tier("host", lambda: Store(tmp_path)))
    ahead.start(unknown, bytes.decode)
    ahead._workers.settle()
    assert ahead.take(KEYS[0].digest) is None
    ahead._keep()
