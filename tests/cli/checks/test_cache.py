"""Section cache: a directory is described, and never made or changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchtpu import config
from torchtpu.cache.entry import Entry
from torchtpu.cache.store import Store
from torchtpu.cli.checks import cache
from torchtpu.cli.checks.row import Row, Status


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The directory of the host's caches; the one in use is named mine."""
    with config.override(cache_dir=str(tmp_path), cache_name="mine", cache_shared=""):
        yield tmp_path


def store(path: Path) -> Store:
    made = Store(path)
    for name in ("add", "mul"):
        made.write(Entry(digest=name, name=name, entries=(), created_s=0.0, payload=b"code" * 1000))
    return made


def host() -> Row:
    return cache.rows(0.0)[0]


def test_programs_bytes_and_bound(root: Path) -> None:
    store(root / "mine")
    assert host().status is Status.OK
    assert host().finding == f"{root / 'mine'}: 2 programs, 8.03 KiB, at most 4.00 GiB"
    with config.override(cache_bytes=0):
        assert host().finding.endswith("no bound")


def test_one_that_is_not_there_is_not_made(root: Path) -> None:
    assert host().status is Status.OK
    assert "not there yet" in host().finding
    assert list(root.iterdir()) == []


def test_unreadable_entries(root: Path) -> None:
    store(root / "mine").file("add").write_bytes(b"damaged")
    assert host().status is Status.WARN
    assert host().finding.endswith("1 not readable, such as add.exe")
    assert host().advice == f"torchtpu-cache verify --delete --dir {root / 'mine'}"


def test_a_directory_that_others_may_write_to_is_refused(root: Path) -> None:
    (store(root / "mine").path).chmod(0o777)
    assert host().status is Status.WARN
    assert "others may write to it" in host().finding


def test_one_that_cannot_be_written_to(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    assert host().status is Status.WARN
    assert "cannot be written to" in host().finding
    assert "TORCHTPU_CACHE_DIR" in host().advice


def test_counting_ends_with_patience(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(root / "mine")
    monkeypatch.setattr(cache, "_PATIENCE_S", -1.0)
    assert "1 programs" in host().finding
    assert "and more" in host().finding


def test_disabled_and_shared(root: Path, tmp_path: Path) -> None:
    store(tmp_path / "shared")
    with config.override(cache_name="disabled", cache_shared=str(tmp_path / "shared")):
        none, shared = cache.rows(0.0)
    assert none.status is Status.NOTE
    assert (shared.what, shared.status) == ("shared cache", Status.OK)
    assert shared.finding.endswith("2 programs, 8.03 KiB")
    assert not (root / "disabled").exists()


def test_a_wrong_setting_is_left_to_section_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTPU_CACHE_BYTES", "4G")
    monkeypatch.delitem(config._values, "cache_bytes", raising=False)
    (row,) = cache.rows(0.0)
    assert row.status is Status.NOTE
    assert "TORCHTPU_CACHE_BYTES" in row.finding
