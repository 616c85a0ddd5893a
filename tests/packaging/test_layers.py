"""The layer contracts hold, and they would notice a file or an import in the wrong place."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())"


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, "--no-cache", "--no-logo"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the source tree to break."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("torchtpu", "targets", "sim", "perf_model"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_contracts_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("torchtpu/stray.py", "", "stray"),
        ("perf_model/upwards.py", "import torchtpu.sim", "torchtpu.perf_model"),
        ("targets/eager.py", "import torch", "torchtpu.targets.eager -> torch"),
        ("sim/numerics.py", "import jax", "torchtpu.sim.numerics -> jax"),
    ],
)
def test_contracts_break(copy: Path, file: str, text: str, complaint: str) -> None:
    (copy / file).write_text(text + "\n")
    done = lint_imports(copy)
    assert done.returncode != 0
    assert complaint in done.stdout
