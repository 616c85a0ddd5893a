"""Estimates of one rank of many: sharded scripts, what they exchange, and wrong topologies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.estimate.test_estimate import report, run, script

SHARDED = """
import sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
dist.init_process_group("tpu_dist")
data = int(sys.argv[1])
mesh = init_device_mesh("tpu", (data, dist.get_world_size() // data), mesh_dim_names=("r", "s"))
with torch.device("meta"):
    model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(3)])
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mesh=mesh if data > 1 else mesh["s"], mp_policy=policy)
model.to_empty(device="tpu")
for layer in model:
    layer.reset_parameters()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 256, device="tpu")).square().sum().backward()
optimizer.step()
"""
REPLICATED = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("tpu_dist")
assert dist.get_rank() == 3 and dist.get_world_size() == 16
model = DistributedDataParallel(torch.nn.Linear(512, 512, device="tpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 512, device="tpu")).sum().backward()
    optimizer.step()
"""


def test_a_sharded_step_gathers_parameters_and_scatters_gradients(tmp_path: Path) -> None:
    path = script(tmp_path, SHARDED)
    (step,) = report("--chip", "v6e", "--topology", "4x4", path, "1")["steps"]
    assert step["devices"] == 16
    assert set(step["network_s"]) == {"all_gather (ici)", "reduce_scatter (ici)"}
    assert 0 < step["exposed_s"] <= sum(step["network_s"].values())
    assert step["bound_shares"]["network"] == pytest.approx(step["exposed_s"] / step["time_s"])
    shards = 3 * 256 * 256 * 4 // 16
    assert step["memory"]["by_kind_bytes"]["parameter"] == shards
    assert step["unmodelled"] == []


def test_replicas_of_shards_reduce_over_the_slices(tmp_path: Path) -> None:
    path = script(tmp_path, SHARDED)
    (step,) = report("--chip", "v6e", "--topology", "2x4", "--slices", "2", path, "2")["steps"]
    assert step["devices"] == 16
    assert "all_reduce (dcn)" in step["network_s"]


def test_ddp_reduces_its_buckets(tmp_path: Path) -> None:
    options = ("--chip", "v5e", "--topology", "4x4", "--rank", "3")
    last = report(*options, script(tmp_path, REPLICATED))["steps"][-1]
    assert set(last["network_s"]) == {"all_reduce (ici)"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--topology", "5x7"], "expected"),
        (["--topology", "many"], "expected"),
        (["--topology", "4x4", "--rank", "16"], "--rank"),
        (["--topology", "4x4", "--slices", "0"], "slice"),
        (["--rank", "1"], "--topology"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_topology_is_one_message(tmp_path: Path, options: list[str], said: str) -> None:
    done = run(*options, script(tmp_path, "import torch"))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert said in done.stderr


def test_without_a_topology_there_is_one_rank(tmp_path: Path) -> None:
    (step,) = report(script(tmp_path, SHARDED), "1")["steps"]
    assert (step["devices"], step["exposed_s"], step["unmodelled"]) == (1, 0.0, [])


CONTROL = """
import torch
import torch.distributed as dist
dist.init_process_group("tpu_dist")
objects = [{"rank": dist.get_rank()}]
dist.broadcast_object_list(objects, src=0, device="tpu")
assert objects == [{"rank": 0}], objects
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, "here")
assert everyone == ["here"] * 8, everyone
count = torch.tensor(3, device="tpu")
dist.all_reduce(count)
assert count.item() == 24
dist.barrier()
model = torch.nn.Linear(8, 8, device="tpu").eval()
with torch.no_grad():
    model(torch.randn(2, 8, device="tpu"))
"""


def test_what_came_from_the_host_keeps_its_value(tmp_path: Path) -> None:
    report("--chip", "v6e", "--topology", "2x4", script(tmp_path, CONTROL))
