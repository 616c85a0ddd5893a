"""Processes that share a cache are killed while its files are damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks/cache_chaos.py"


def test_kills_and_damage_crash_nobody_and_give_no_wrong_executable() -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "100"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["kills"] == 100
    assert found["failures"] == 0
    assert found["survivors"] > 8
    assert found["sabotaged"] > 50
    assert found["most_compiles"] == 1  # of a program in a process
    assert found["compiles_of_first_round"] == found["programs"]  # by eight processes at once
    assert found["compiles"] > found["programs"]  # the damage was noticed
