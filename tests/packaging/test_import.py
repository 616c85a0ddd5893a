"""Importing the package costs next to nothing and brings in nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 0.05
HEAVY = {"torch", "jax", "jaxlib", "numpy", "scipy"}

MEASURE = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import {module}
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""


def import_in_new_process(module: str) -> tuple[float, set[str]]:
    """Seconds that an import takes, and the top-level modules that it brings in."""
    command = [sys.executable, "-c", MEASURE.format(module=module)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    seconds, modules = json.loads(done.stdout)
    return seconds, {name.partition(".")[0] for name in modules}


def test_import_is_fast() -> None:
    # The first run may compile byte code; a busy machine slows single runs.
    assert min(import_in_new_process("torchtpu")[0] for _ in range(5)) < LIMIT_S


@pytest.mark.parametrize("module", ["torchtpu", "torchtpu.perf_model", "torchtpu.sim"])
def test_import_is_light(module: str) -> None:
    assert not import_in_new_process(module)[1] & HEAVY


def test_targets_import_no_torch() -> None:
    assert "torch" not in import_in_new_process("torchtpu.targets")[1]


def test_unknown_name_lists_the_known_ones() -> None:
    import torchtpu

    with pytest.raises(AttributeError, match=r"no attribute 'regster'.*register"):
        _ = torchtpu.regster


def test_links_of_the_source_tree_are_relative() -> None:
    for name in ("targets", "sim", "perf_model"):
        link = ROOT / "torchtpu" / name
        assert link.is_symlink()
        assert link.readlink() == Path("..") / name


def test_the_first_use_of_the_device_prints_nothing() -> None:
    command = [sys.executable, "-c", "import torch; torch.ones(2, device='tpu').sum().item()"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
