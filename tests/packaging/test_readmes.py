"""A folder's README names each of its files, so that a newcomer finds the room of a line."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [
    "torchtpu", "torchtpu/cache", "torchtpu/cli", "torchtpu/cli/checks",
    "torchtpu/compiler", "torchtpu/compiler/padding",
    "torchtpu/eager", "torchtpu/estimate", "torchtpu/lowerings", "torchtpu/partition",
    "torchtpu/recompiles",
    "targets", "sim", "perf_model", "examples", "benchmarks",
]  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_readme_names_every_file(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text()
    names = {p.name for p in (ROOT / folder).glob("*.py")} - {"__init__.py"}
    assert sorted(n for n in names if n not in text) == []
