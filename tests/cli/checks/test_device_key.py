"""Section device key: torchtpu, nobody, or another backend has PrivateUse1."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtpu.cli.checks import device_key
from torchtpu.cli.checks.row import Row, Status


def rows() -> dict[str, Row]:
    return {row.what: row for row in device_key.rows(100.0)}


def test_another_backend_has_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.py").write_text(
        "def load():\n    import torch; torch.utils.rename_privateuse1_backend('other')\n"
    )
    folder = tmp_path / "other_backend-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other-backend\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[torch.backends]\nother = other:load\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    found = rows()
    assert found["backend other-backend"].status is Status.WARN
    assert found["PrivateUse1"].status is Status.FAIL
    assert "already belongs to 'other'" in found["PrivateUse1"].finding
    assert found["PrivateUse1"].advice.startswith("uninstall one of the two")


def test_nobody_has_the_key_where_torch_loads_no_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    found = rows()
    assert found["TORCH_DEVICE_BACKEND_AUTOLOAD"].status is Status.WARN
    assert found["PrivateUse1"].status is Status.NOTE
    assert "torchtpu.register()" in found["PrivateUse1"].finding


def test_a_torch_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row = rows()["import torch"]
    assert row.status is Status.FAIL
    assert row.finding == "ImportError: libtorch.so: cannot open"
    assert "Traceback" in row.details
