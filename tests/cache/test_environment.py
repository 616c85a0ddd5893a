"""The part of a key that is neither program nor target."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
import torch

from torchtpu.cache import environment
from torchtpu.cache.encoding import Unencodable


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    for cached in (environment._fixed, environment.sources, environment._source_files):
        cached.cache_clear()
    yield
    for cached in (environment._fixed, environment.sources, environment._source_files):
        cached.cache_clear()


def test_versions_and_sources_are_named() -> None:
    found = dict(environment.entries())
    assert found["torch"] == torch.__version__
    assert found["jax"] == jax.__version__
    assert {"python", "jaxlib", "numpy", "torchtpu", "sources"} <= set(found)


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS", "NPROC"])
def test_variables_that_change_code_are_part(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "--of=this")
    assert dict(environment.entries())[f"variable {variable}"] == "--of=this"
    monkeypatch.setenv("HARMLESS", "1")
    assert "variable HARMLESS" not in dict(environment.entries())


def test_settings_of_jax_are_part() -> None:
    before = environment.jax_settings()
    with jax.numpy_dtype_promotion("strict"):
        assert environment.jax_settings() != before
    with jax.enable_x64(True):  # set by the executor, whatever the user has
        assert environment.jax_settings() == before


def _sources_now() -> str:
    environment._source_files.cache_clear()
    environment.sources.cache_clear()
    return environment.sources()


def test_sources_follow_every_file_that_makes_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("program.py", "lowerings/a.py", "cli/perf.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr(environment, "_ROOT", tmp_path)
    seen = {_sources_now()}
    (tmp_path / "cli/perf.py").write_text("x = 2\n")
    assert {_sources_now()} == seen
    (tmp_path / "lowerings/a.py").write_text("x = 2\n")
    seen.add(_sources_now())
    (tmp_path / "lowerings/b.py").write_text("")
    seen.add(_sources_now())
    (tmp_path / "lowerings/b.py").rename(tmp_path / "lowerings/c.py")
    seen.add(_sources_now())
    assert len(seen) == 4


def test_the_real_sources_hold_the_lowerings_and_targets() -> None:
    names = {str(Path(p).relative_to(environment._ROOT)) for p in environment._source_files()}
    assert {"program.py", "views.py", "lowerings/linalg.py", "targets/pjrt.py"} <= names


def test_sources_that_change_under_a_process_end_the_keeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may run the old lines, the new ones, or some of both."""
    path = tmp_path / "program.py"
    path.write_text("x = 1\n")
    monkeypatch.setattr(environment, "_ROOT", tmp_path)
    monkeypatch.setattr(environment, "_STARTED_S", time.time() + 3600)
    assert environment.entries()
    monkeypatch.setattr(environment, "_STARTED_S", path.stat().st_ctime)
    os.utime(path, (1, 1))  # as a tool may that keeps times
    with pytest.raises(Unencodable, match=r"program\.py has changed"):
        environment.entries()


def test_the_start_of_the_process_is_known() -> None:
    script = (
        "import time; start = time.time(); time.sleep(0.2)\n"
        "from torchtpu.cache import environment\n"
        "print(environment._STARTED_S - start)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.05


def test_without_sources_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_ROOT", tmp_path)
    with pytest.raises(Unencodable, match="no sources"):
        environment.entries()
