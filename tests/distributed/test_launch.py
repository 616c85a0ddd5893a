"""The environment of a launch on TPUs, and how a rank hands it on to libtpu."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from torchtpu import targets
from torchtpu.distributed.launch import launch_env
from torchtpu.errors import TpuError
from torchtpu.targets import TargetError, tpu


def test_one_host() -> None:
    assert launch_env(1, 4, {}) == {
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": (
            "localhost:8070,localhost:8071,localhost:8072,localhost:8073"
        ),
        "TORCH_TPU_TOPOLOGY": "2,2,1",
        "TORCH_TPU_DEVICES_PER_HOST": "4",
    }


def test_many_hosts() -> None:
    given = {
        "TPU_WORKER_HOSTNAMES": "a, b",
        "TORCH_TPU_BASE_PORT": "9000",
        "TORCH_TPU_DEVICES_PER_HOST": "2",
    }
    made = launch_env(2, None, given)
    assert made["TORCH_TPU_SLICEBUILDER_ADDRESSES"] == "a:9000,a:9001,b:9000,b:9001"
    assert launch_env(2, 4, given | {"TORCH_TPU_TOPOLOGY": "2,2,2"})["TORCH_TPU_TOPOLOGY"] == (
        "2,2,2"
    )


@pytest.mark.parametrize(
    ("nodes", "processes", "given", "said"),
    [
        (2, 4, {}, "TPU_WORKER_HOSTNAMES"),
        (2, 4, {"TPU_WORKER_HOSTNAMES": "a,b,c"}, "the names of 2 hosts"),
        (0, 4, {}, "expected 1 or more nodes"),
        (1, -1, {}, "expected 1 or more nodes"),
        (1, 4, {"TORCH_TPU_TOPOLOGY": "2,1,1"}, "product is the 4 processes"),
        (1, 4, {"TORCH_TPU_TOPOLOGY": "2x2"}, "2,2,1 for 4"),
        (1, 4, {"TORCH_TPU_BASE_PORT": "x"}, "expected a whole number"),
        (1, 4, {"TORCH_TPU_BASE_PORT": "65535"}, "room for 4 ports"),
        (1, None, {"TORCH_TPU_DEVICES_PER_HOST": "-2"}, "expected a whole number"),
    ],
)
def test_what_does_not_fit(
    nodes: int, processes: int | None, given: dict[str, str], said: str
) -> None:
    with pytest.raises(TpuError, match=said):
        launch_env(nodes, processes, given)


def test_no_chip_to_start_a_process_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "chips", lambda: 0)
    with pytest.raises(TpuError, match="pass nproc_per_node"):
        launch_env(1, None, {})
    monkeypatch.setattr(tpu, "chips", lambda: 8)
    assert launch_env(1, None, {})["TORCH_TPU_TOPOLOGY"] == "2,4,1"


@pytest.mark.parametrize("module", ["torch.tpu.distributed", "torch.tpu.distributed.environment"])
def test_what_the_shell_evaluates(module: str) -> None:
    line = f'eval "$({sys.executable} -m {module} --nproc-per-node 2)"; echo "$TORCH_TPU_TOPOLOGY"'
    made = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert made.stdout == "1,2,1\n"
    asked = [sys.executable, "-m", module, "--nnodes", "2", "--nproc-per-node", "2"]
    clean = {k: v for k, v in os.environ.items() if k != "TPU_WORKER_HOSTNAMES"}
    failed = subprocess.run(asked, capture_output=True, text=True, check=False, env=clean)
    assert failed.returncode == 2
    assert "TPU_WORKER_HOSTNAMES" in failed.stderr


def test_what_libtpu_is_told() -> None:
    told = tpu.slice_variables(1, 4, launch_env(1, 4, {}) | {"LOCAL_RANK": "1"})
    assert told["TPU_PROCESS_PORT"] == "8071"
    assert told["TPU_PROCESS_BOUNDS"] == "2,2,1"
    assert told["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"
    assert told["TPU_VISIBLE_DEVICES"] == told["CLOUD_TPU_TASK_ID"] == "1"
    with pytest.raises(TargetError, match="an address for each of 2 ranks, got 4"):
        tpu.slice_variables(1, 2, launch_env(1, 4, {}))


def test_a_launch_without_the_environment_names_what_is_missing() -> None:
    with pytest.raises(
        TargetError,
        match=r"missing required environment variables for distributed training: "
        r"TORCH_TPU_SLICEBUILDER_ADDRESSES, TORCH_TPU_TOPOLOGY; .*torch.tpu.distributed",
    ):
        tpu.slice_variables(0, 2, {})
    with pytest.raises(TargetError, match="training: TORCH_TPU_TOPOLOGY;"):
        tpu.slice_variables(0, 1, {targets.LAUNCH_VARIABLES[0]: "localhost:1"})


def test_settings_of_windows() -> None:
    module = torch.tpu.distributed
    assert (module.window_num_stripes, module.window_stripe_chunk_mb) == (4, 8)
    module.window_num_stripes = 2
    assert module.window_num_stripes == 2
    module.window_num_stripes = 4
    for wrong in (0, "4", True):
        with pytest.raises(TpuError, match="expected window_stripe_chunk_mb to be > 0"):
            module.window_stripe_chunk_mb = wrong
