"""What the host of a simulated device takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtpu.perf_model.facts import FactError
from torchtpu.sim import host


@pytest.fixture
def _fresh() -> None:
    host.record_s.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_recording_an_op_takes_less_than_dispatching_a_program() -> None:
    assert 1e-6 < host.record_s() < 30e-6


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("text", ["", "host = 3", "[host]\nother = 1", "[host]\nrecord_s = 8e-6"])
def test_a_wrong_file_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "host.toml"
    file.write_text(text)
    monkeypatch.setattr(host, "PATH", file)
    with pytest.raises(FactError, match=r"host\.toml"):
        host.record_s()
