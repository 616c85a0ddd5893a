"""Locks between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from torchtpu.cache import lock as locks
from torchtpu.cache.lock import FileLock

HOLD = """
import sys
from pathlib import Path
from torchtpu.cache.lock import FileLock
with FileLock(Path(sys.argv[1]), 0) as lock:
    print(lock.held, flush=True)
    sys.stdin.read()
"""


def test_one_holds_and_another_does_not(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with FileLock(path, 0) as first:
        assert first.held
        with FileLock(path, 0.01) as second:
            assert not second.held
        with FileLock(tmp_path / "b.lock", 0) as other:
            assert other.held
    assert not path.exists()
    with FileLock(path, 0) as again:
        assert again.held


def test_the_kernel_frees_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        with FileLock(path, 0) as lock:
            assert not lock.held
        process.kill()
        with FileLock(path, 30) as lock:
            assert lock.held


def _in_thread(path: Path, found: list[bool]) -> threading.Thread:
    def take() -> None:
        with FileLock(path, 30) as lock:
            found.append(lock.held)

    thread = threading.Thread(target=take)
    thread.start()
    return thread


def test_whoever_waits_is_next(tmp_path: Path) -> None:
    found: list[bool] = []
    with FileLock(tmp_path / "a.lock", 0):
        threads = [_in_thread(tmp_path / "a.lock", found) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_nobody_waits_in_turn_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    waits = threading.Semaphore(0)
    flock = fcntl.flock

    def watched(file: int, how: int) -> None:
        try:
            flock(file, how)
        except BlockingIOError:
            waits.release()
            raise

    monkeypatch.setattr(fcntl, "flock", watched)
    with FileLock(tmp_path / "a.lock", 0) as lock:
        thread = _in_thread(tmp_path / "a.lock", found)
        waits.acquire()
        lock.fruitless()
    thread.join()
    assert found == [False]
    with FileLock(tmp_path / "a.lock", 0) as lock:
        assert lock.held


def test_a_mark_that_a_killed_holder_left_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_bytes(b"\0")
    with FileLock(tmp_path / "a.lock", 0) as lock:
        assert lock.held


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(locks, "_warned", set())
    for name in ("a", "b"):
        with FileLock(tmp_path / name, 30) as lock:
            assert not lock.held
    assert caplog.text.count("no file locks") == 1


def test_where_no_file_can_be_made_there_is_no_lock(tmp_path: Path) -> None:
    with FileLock(tmp_path / "none/a", 30) as lock:
        assert not lock.held
