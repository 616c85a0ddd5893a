"""`torchtpu-cache`: what it lists, counts, checks and removes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from torchtpu.cache.entry import Entry
from torchtpu.cache.store import Store
from torchtpu.cli import cache

ENTRIES = (("device", "cpu"), ("torch", "2.13"), ("jax", "0.10"), ("jaxlib", "0.10"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A cache of two programs; add was used two days ago."""
    store = Store(tmp_path / "cache")
    for name in ("add", "mul"):
        store.write(
            Entry(
                digest=name * 20, name=name, entries=ENTRIES, created_s=int(time.time()) - 7200,
                payload=b"code" * 1000,
            )
        )  # fmt: skip
    two_days_ago = time.time() - 2 * 86400
    os.utime(store.file("add" * 20), (two_days_ago, two_days_ago))
    return store


def run(store: Store, *arguments: str) -> int:
    return cache.main([*arguments, "--dir", str(store.path.parent)])


def data(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_ls_names_programs_the_last_used_first(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(store, "ls") == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["size", "age", "last", "use", "jaxlib", "digest", "program"]
    assert first.split()[-1] == "mul"
    assert second.split() == ["4.1", "KiB", "2", "h", "2", "d", "0.10", "addaddaddadd", "add"]


def test_ls_as_json(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store, "ls", "--format", "json") == 0
    first, _ = data(capsys)
    assert first["program"] == "mul"
    assert first["bytes"] > 4000
    assert first["device"] == "cpu"
    assert first["versions"]["torch"] == "2.13"


def test_stats_count_by_version(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store, "stats") == 0
    assert "2 programs, 8.3 KiB" in capsys.readouterr().out
    assert run(store, "stats", "--format", "json") == 0
    found = data(capsys)
    assert found["entries"] == 2
    assert list(found["versions"].values()) == [2]


def test_clear_removes_all_or_what_is_unused(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(store, "clear", "--unused-days", "1") == 0
    assert "removed: 1" in capsys.readouterr().out
    assert [f.path.stem for f in store.list()] == ["mul" * 20]
    assert run(store, "clear", "--format", "json") == 0
    assert data(capsys)["removed"] == 1
    assert not list(store.list())


def test_verify_finds_and_removes_bad_entries(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(store, "verify") == 0
    bad = store.file("add" * 20)
    bad.write_bytes(bad.read_bytes()[:-1] + b"X")
    store.file("sub" * 20).write_bytes(store.file("mul" * 20).read_bytes())
    assert run(store, "verify") == 1
    text = capsys.readouterr().out
    assert "checksum" in text
    assert "another key" in text
    assert run(store, "verify", "--delete", "--format", "json") == 1
    found = data(capsys)
    assert found["intact"] == 1
    assert len(found["bad"]) == 2
    assert run(store, "verify") == 0


def test_an_unreadable_entry_is_listed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.file("add" * 20).write_bytes(b"")
    assert run(store, "ls") == 0
    assert "not readable" in capsys.readouterr().out


def test_a_directory_that_is_not_there_is_empty_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("ls", "stats", "clear", "verify"):
        assert cache.main([command, "--dir", str(tmp_path / "none")]) == 0
    assert "0 programs" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_the_directory_is_that_of_the_settings(tmp_path: Path) -> None:
    Store(tmp_path / "mine").write(
        Entry(digest="d", name="neg", entries=(), created_s=0.0, payload=b"")
    )
    script = (
        "import sys; from torchtpu.cli import cache; code = cache.main(['ls'])\n"
        "assert not {'torch', 'jax', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    settings = {"TORCHTPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_TIER2_COMPILATION_CACHE": "mine"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "neg" in done.stdout
    settings["TORCH_TPU_TIER2_COMPILATION_CACHE"] = "disabled"
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected --dir" in done.stderr
