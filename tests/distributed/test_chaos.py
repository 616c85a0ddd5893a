"""Ranks of an elastic training are killed and stopped; TORCHTPU_TEST_ALL=1 does so 50 times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import daily
from tests.distributed import chaos

pytestmark = pytest.mark.timeout(7200 if daily.ALL else 480)  # processes that import and compile

EVENTS = 50 if daily.ALL else 2


def test_training_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    lines: list[str] = []
    report = chaos.run(EVENTS, daily.PART, tmp_path, lines.append)
    assert not report.faults, "\n".join([*lines, *report.faults])
    assert len(report.events) == EVENTS
