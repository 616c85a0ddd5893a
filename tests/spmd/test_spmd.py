"""One program over four devices: what holds there, in processes of their own."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.spmd import checks, checks_of_training

pytestmark = pytest.mark.timeout(900)  # a process compiles hundreds of partitioned programs


def _names(module: ModuleType) -> list[str]:
    return [n for n, _ in inspect.getmembers(module, inspect.isfunction) if n.startswith("check_")]


def _environment(**variables: str) -> dict[str, str]:
    torch.manual_seed(checks.SEED)
    drawn = json.dumps(torch.randn(2, 4, device="tpu").tolist())
    own = {
        "TORCHTPU_TARGET": "cpu",
        "TORCHTPU_TEST_DRAWN": drawn,
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",  # compiles are looked at
    }
    return os.environ | own | variables


def run(code: str, **variables: str) -> str:
    """Return what a program prints in a process of its own."""
    made = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(**variables),
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


@cache
def _outcomes(module: str, mode: str) -> dict[str, str]:
    made = subprocess.run(
        [sys.executable, "-m", module],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(TORCHTPU_MODE=mode),
    )
    assert made.stdout, made.stderr
    found: dict[str, str] = json.loads(made.stdout)
    return found


@pytest.mark.parametrize("name", _names(checks))
@pytest.mark.parametrize("mode", ["fused", "strict", "debug"])
def test_in_mode(mode: str, name: str) -> None:
    assert _outcomes("tests.spmd.checks", mode)[name] == ""


@pytest.mark.parametrize("name", _names(checks_of_training))
def test_training(name: str) -> None:
    assert _outcomes("tests.spmd.checks_of_training", "fused")[name] == ""


PRODUCT = """
import torch
from torchtpu import spmd
mesh = spmd.use(spmd.Mesh((2, 2), ("data", "tensor")))
x = spmd.shard(torch.arange(32.0).view(4, 8), mesh, ("data", "tensor"))
w = spmd.shard(torch.ones(8, 4), mesh, ("tensor",))
y = x @ w
print(y.tolist(), spmd.sharding_of(y), torch.tpu._get_cache_stats()["num_compilations"])
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    kept = {"TORCHTPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_TIER2_COMPILATION_CACHE": "default"}
    first, second = (run(PRODUCT, **kept).strip().rpartition(" ") for _ in range(2))
    assert second[0] == first[0]
    assert int(first[2]) > 0
    assert int(second[2]) == 0


REFUSED = """
import torch
import torch.distributed as dist
from torchtpu import spmd
{before}
try:
    {call}
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("before", "call", "said"),
    [
        ("torch.ones(1, device='tpu')", "spmd.use(4)", "before the first tensor on the device"),
        (
            "dist.init_process_group('tpu_dist', rank=0, world_size=1, store=dist.HashStore())",
            "spmd.use(2)",
            "one process per device or one for all",
        ),
        (
            "",
            "spmd.shard(torch.ones(4, device='tpu'), spmd.Mesh((2,), ('data',)), ('data',))",
            "this process has one device",
        ),
        ("", "spmd.sharding_of(torch.ones(4, device='tpu'))", "this process has one device"),
        ("", "spmd.Mesh((2, 2), ('data',))", "as many different names"),
        ("", "spmd.Mesh((0,), ('data',))", "sizes of 1 or more"),
        ("", "spmd.use(0)", "sizes of 1 or more"),
    ],
)
def test_what_is_refused(before: str, call: str, said: str) -> None:
    assert said in run(REFUSED.format(before=before, call=call))


def test_target_sim_says_what_to_use() -> None:
    code = REFUSED.format(before="spmd.use(4)", call="torch.ones(1, device='tpu')")
    assert "use target cpu" in run(code, TORCHTPU_TARGET="sim:v6e")


AXES_OF_EIGHT = """
import torch
from torchtpu import spmd
mesh = spmd.use(8)
x = spmd.shard(torch.arange(64.0).view(16, 4), mesh, ("devices",))
y = x.view(2, 8, 4) + 1
print(torch.equal(y.cpu(), torch.arange(64.0).view(2, 8, 4) + 1), spmd.sharding_of(y.clone()))
one = spmd.shard(torch.ones(8), mesh, ("devices",))
print(spmd.sharding_of(one), one.sum().item())
"""


def test_a_part_of_an_axis_may_stand_alone() -> None:
    """XLA splits dims over two of an axis's eight devices, which is a sharding like any other."""
    first, second = run(AXES_OF_EIGHT).splitlines()
    assert first.startswith("True ")
    assert second == "('devices',) 8.0"


def test_a_mesh_of_one_device() -> None:
    code = """
import torch
from torchtpu import spmd
mesh = spmd.use(spmd.Mesh((1, 1), ("data", "tensor")))
x = spmd.shard(torch.ones(3, 5), mesh, ("data", "tensor"))
print((x @ x.t()).sum().item(), spmd.sharding_of(x))
"""
    assert run(code) == "45.0 (None, None)\n"
