"""Section versions: what is installed against what is required."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchtpu.cli.checks import versions
from torchtpu.cli.checks.row import Row, Status
from torchtpu.private.versions import KNOWN

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts the metadata of a package before what is really installed."""

    def put(name: str, version: str, *requires: str) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines]) + "\n")

    monkeypatch.syspath_prepend(tmp_path)
    versions._requirements.cache_clear()
    yield put
    versions._requirements.cache_clear()


def found(what: str) -> Row:
    return next(row for row in versions.rows(0.0) if row.what == what)


def test_what_is_installed_here_is_in_range() -> None:
    rows = versions.rows(0.0)
    assert {r.what for r in rows} >= {"torchtpu", "python", "torch", "jax", "jaxlib", "ml_dtypes"}
    assert [r for r in rows if r.status is Status.FAIL] == []


def test_too_old_a_torch(install: Install) -> None:
    install("torch", "2.12.1+cpu")
    row = found("torch")
    assert row.status is Status.FAIL
    assert row.finding.startswith("2.12.1+cpu, but torchtpu ")
    assert row.finding.endswith("needs >=2.13")
    assert row.advice == "pip install 'torch>=2.13'"


@pytest.mark.parametrize("version", ["2.13.0+cu130", "2.14.0.dev20261101"])
def test_later_and_local_versions_of_torch_are_in_range(install: Install, version: str) -> None:
    install("torch", version)
    assert found("torch").status is Status.OK


def test_a_torch_that_nobody_has_tested(install: Install) -> None:
    install("torch", "9.0")
    row = found("torch")
    assert row.status is Status.WARN
    assert row.finding == "9.0: torchtpu is tested with {} to {}".format(*KNOWN["torch"])
    assert row.advice == f"pip install 'torch=={KNOWN['torch'][1]}.*'"


def test_a_jaxlib_that_jax_does_not_allow(install: Install) -> None:
    install("jax", "0.11.0", "jaxlib>=0.11,<=0.11.0")
    install("jaxlib", "0.10.2")
    row = found("jaxlib")
    assert row.status is Status.FAIL
    assert "but jax 0.11.0 needs" in row.finding
    assert found("jax and jaxlib").advice == "pip install 'jax==0.11.0' 'jaxlib==0.11.0'"


def test_a_jaxlib_of_another_release_that_jax_allows(install: Install) -> None:
    install("jax", "0.11.1", "jaxlib>=0.11")
    install("jaxlib", "0.11.0")
    assert found("jaxlib").status is Status.OK
    assert found("jax and jaxlib").status is Status.WARN


@pytest.mark.parametrize(("version", "status"), [("0.0.50.1", "ok"), ("0.0.42", "warn")])
def test_libtpu_is_the_one_of_jax(install: Install, version: str, status: str) -> None:
    install("jax", "0.12.0", 'libtpu==0.0.50.*; extra == "tpu"', 'libtpu==1.*; extra == "other"')
    install("libtpu", version)
    row = found("libtpu")
    assert row.status == status
    assert row.finding == (
        "0.0.50.1 (jax 0.12.0 needs ==0.0.50.*)"
        if status == "ok"
        else "0.0.42, but jax 0.12.0 needs ==0.0.50.*"
    )


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = versions._version
    monkeypatch.setattr(
        versions, "_version", lambda name: "" if name in ("ml_dtypes", "libtpu") else real(name)
    )
    assert found("ml_dtypes").status is Status.FAIL
    assert found("ml_dtypes").advice.startswith("pip install 'ml_dtypes")
    assert found("libtpu").status is Status.NOTE
