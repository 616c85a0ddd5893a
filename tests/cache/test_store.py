"""The store: damage is noticed, writes are whole or nothing, the oldest go first."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtpu.cache.directory import Unusable
from torchtpu.cache.entry import BadEntry, Entry, pack
from torchtpu.cache.store import Store


def entry(number: int, payload: bytes = b"code" * 64) -> Entry:
    return Entry(
        digest=f"{number:064x}", name="add", entries=(("n", str(number)),), created_s=1.0,
        payload=payload,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def test_what_is_written_is_read(store: Store) -> None:
    assert store.read(entry(1).digest) is None
    assert store.write(entry(1))
    assert store.read(entry(1).digest) == entry(1)
    assert store.write(entry(1, b"other"))
    assert store.read(entry(1).digest) == entry(1, b"other")
    store.discard(entry(1).digest)
    store.discard(entry(1).digest)
    assert store.read(entry(1).digest) is None


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "magic": lambda d: b"X" + d[1:],
    "length": lambda d: d[:9] + b"\xff" + d[10:],
    "checksum": lambda d: d[:30] + bytes([d[30] ^ 1]) + d[31:],
    "header": lambda d: d.replace(b'"add"', b'"sub"'),
    "payload": lambda d: d[:-1] + bytes([d[-1] ^ 128]),
    "truncated": lambda d: d[: len(d) // 2],
    "empty": lambda _: b"",
    "zeros": lambda d: bytes(len(d)),
    "longer": lambda d: d + b"\0",
    "another entry": lambda _: pack(entry(2)),
    "another version": lambda d: d.replace(b"TTPUEX01", b"TTPUEX99"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_never_read(store: Store, damage: str) -> None:
    store.write(entry(1))
    path = store.file(entry(1).digest)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.raises(BadEntry):
        store.read(entry(1).digest)
    (found,) = store.list()
    assert store.verify(found)


def test_intact_entries_verify(store: Store) -> None:
    store.write(entry(1))
    assert [store.verify(f) for f in store.list()] == [""]


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    size = len(pack(entry(0)))
    store = Store(tmp_path, bound_bytes=10 * size + 1)
    for number in range(10):
        store.write(entry(number))
        os.utime(store.file(entry(number).digest), (number, number))
    store.read(entry(0).digest)  # now the last used one
    store.write(entry(10))
    left = {f.path.stem for f in store.list()}
    assert {entry(0).digest, entry(10).digest} <= left
    assert not {entry(1).digest, entry(2).digest} & left
    assert sum(f.nbytes for f in store.list()) <= 10 * size


def test_the_bound_holds_over_many_writes(tmp_path: Path) -> None:
    size = len(pack(entry(0)))
    store = Store(tmp_path, bound_bytes=20 * size)
    for number in range(100):
        store.write(entry(number))
        assert sum(f.nbytes for f in store.list()) <= 20 * size
    assert store.read(entry(99).digest) is not None


def test_an_entry_beyond_the_bound_is_not_written(tmp_path: Path) -> None:
    store = Store(tmp_path, bound_bytes=1000)
    assert not store.write(entry(1, bytes(2000)))
    assert not list(store.list())


def test_leftovers_of_the_killed_go_after_a_while(tmp_path: Path) -> None:
    store = Store(tmp_path, bound_bytes=10**6)
    old, new = store.path / "1-a.tmp", store.path / "2-b.tmp"
    lock, held = store.path / "c.lock", store.path / "d.lock"
    for path in (old, new, lock, held):
        path.write_bytes(b"")
    for path in (old, lock, held):
        os.utime(path, (time.time() - 7200,) * 2)
    with store.lock("d", 0) as mine:
        assert mine.held
        os.utime(held, (time.time() - 7200,) * 2)
        store.write(entry(1))
        assert held.exists()
    assert not old.exists()
    assert not lock.exists()
    assert new.exists()


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    store = Store(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            store.write(entry(1, bytes(100_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(store.path.iterdir())


def test_one_directory_for_each_version_of_the_format(tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("")
    with pytest.raises(Unusable, match="v1"):
        Store(tmp_path)


def test_threads_write_and_read_one_entry(store: Store) -> None:
    payloads = [bytes([n]) * 50_000 for n in range(4)]
    wrong: list[object] = []

    def work(payload: bytes) -> None:
        for _ in range(25):
            store.write(entry(1, payload))
            found = store.read(entry(1).digest)
            if found is None or found.payload not in payloads:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(p,)) for p in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not list(store.list(".tmp"))


WRITE = """
import sys
from pathlib import Path
from torchtpu.cache.entry import Entry
from torchtpu.cache.store import Store
store = Store(Path(sys.argv[1]))
print("begun", flush=True)
while True:
    store.write(Entry(digest="d", name="", entries=(), created_s=0.0, payload=bytes(10**6)))
"""


def test_a_killed_writer_leaves_a_whole_entry_or_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(3):
        command = [sys.executable, "-c", WRITE, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            while not any(store.path.iterdir()):
                pass
            process.kill()
        found = store.read("d")
        assert found is None or found.payload == bytes(10**6)
