"""A tier: whatever happens to its store, one line is logged and its user goes on."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cache.test_store import entry
from torchtpu.cache import tier as tiers
from torchtpu.cache.entry import Entry
from torchtpu.cache.key import Key
from torchtpu.cache.store import Store
from torchtpu.cache.tier import Tier

KEY = Key((("n", "1"),))
ENTRY = Entry(digest=KEY.digest, name="add", entries=KEY.entries, created_s=1.0, payload=b"code")


def tier(path: Path, limit_s: float | None = None) -> Tier:
    return Tier("host", lambda: Store(path), limit_s)


def test_no_store_is_no_entry_and_no_complaint(caplog: pytest.LogCaptureFixture) -> None:
    absent = Tier("host", None)
    assert not absent.write(ENTRY)
    assert absent.read(KEY.digest) is None
    with absent.lock(KEY, 30) as lock:
        assert lock is None
    assert not caplog.text


@pytest.mark.parametrize("limit_s", [None, 30])
def test_entries_come_back(tmp_path: Path, limit_s: float | None) -> None:
    first = tier(tmp_path, limit_s)
    assert first.write(ENTRY)
    assert tier(tmp_path, limit_s).read(KEY.digest) == ENTRY
    with first.lock(KEY, 0) as lock:
        assert lock is not None
        assert lock.held


@pytest.mark.parametrize("limit_s", [None, 30])
def test_a_bad_entry_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit_s: float | None
) -> None:
    one = tier(tmp_path, limit_s)
    one.write(ENTRY)
    (path,) = tmp_path.glob("v1/*.exe")
    path.write_bytes(path.read_bytes()[:-1])
    assert one.read(KEY.digest) is None
    assert not path.exists()
    assert one.errors == 1
    assert "removed" in caplog.text


def test_a_directory_that_cannot_be_used_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").write_text("")
    one = tier(tmp_path / "a")
    for _ in range(3):
        assert not one.write(ENTRY)
        assert one.read(KEY.digest) is None
    assert caplog.text.count("going on without") == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_where_nothing_can_be_written_entries_are_still_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    tier(tmp_path).write(ENTRY)
    tries: list[Path] = []

    def refuse(path: Path, *_: Any) -> int:
        tries.append(path)
        path.touch()
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    one = tier(tmp_path)
    assert not one.write(entry(1))
    assert not one.write(entry(2))
    assert len(tries) == 1
    assert not tries[0].exists()
    assert one.read(KEY.digest) == ENTRY
    assert caplog.text.count("cannot write") == 1


def test_an_entry_that_cannot_be_read_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = tier(tmp_path)
    one.write(ENTRY)
    (path,) = tmp_path.glob("v1/*.exe")
    path.unlink()
    path.mkdir()
    assert one.read(KEY.digest) is None
    assert one.read(KEY.digest) is None
    assert caplog.text.count("cannot read") == 1
    assert one.errors == 2


def test_a_slow_directory_holds_nobody_up_twice(caplog: pytest.LogCaptureFixture) -> None:
    release, calls = threading.Event(), []

    def never() -> Store:
        calls.append(1)
        release.wait(60)
        raise OSError

    one = Tier("shared", never, 0.05)
    assert one.read(KEY.digest) is None
    assert one.read(KEY.digest) is None
    assert not one.write(ENTRY)
    assert len(calls) == 1
    assert "no answer within 0.05 s" in caplog.text
    release.set()


def test_a_directory_that_is_slow_again_and_again_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    clock = iter(range(0, 1000, 5))  # every call takes 5 s
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(tiers, "_within", lambda _, do: do())
    one = tier(tmp_path, 10)
    one.write(ENTRY)
    found = [one.read(KEY.digest) for _ in range(20)]
    assert 10 <= found.count(ENTRY) < 15
    assert found[-1] is None
    assert "slow too often" in caplog.text


def test_a_miss_names_what_differs(tmp_path: Path) -> None:
    one = tier(tmp_path)
    assert "no program" in one.nearest("add", KEY)
    one.write(ENTRY)
    other = Key((("n", "1"), ("jax", "2")))
    assert one.nearest("add", other) == f"{KEY.digest} differs in jax"
    assert "no program" in one.nearest("mul", other)
