"""Directories: made private, and refused where others may write."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from torchtpu.cache import directory
from torchtpu.cache.directory import Unusable


def test_it_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    directory.prepare(tmp_path / "a", shared=False)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_one_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    with pytest.raises(Unusable, match=r"others may write.*chmod"):
        directory.prepare(tmp_path / "a", shared=False)


def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:  # the system's own directories are trusted: the user must be another than root
        os.chown(tmp_path, 12345, -1)
    with pytest.raises(Unusable, match="belongs to user"):
        directory.prepare(tmp_path, shared=False)


def test_a_shared_one_that_all_may_write_to_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        directory.prepare(tmp_path, shared=True)
    assert "everybody may write" in caplog.text


def test_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    for path in (tmp_path / "a", tmp_path / "a/b"):
        with pytest.raises(Unusable, match="no directory"):
            directory.prepare(path, shared=False)


def test_the_default_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/mine")
    assert directory.default() == Path("/of/mine/torchtpu")
    for text in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", text)
        assert directory.default() == Path.home() / ".cache/torchtpu"


def test_a_user_without_a_home_has_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(Unusable, match="TORCHTPU_CACHE_DIR"):
        directory.default()
