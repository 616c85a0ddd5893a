"""Meshes whose neighbours are neighbours in the slice."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from torchtpu import targets
from torchtpu.errors import TpuError
from torchtpu.targets import Place, Settings

IMAGINED = """
from torchtpu.estimate import ranks
ranks.imitate_torchrun(0, 16, 4)
ranks.meet_nobody(0, 16)
import torch
import torch.distributed as dist
try:
    torch.tpu.topology_aware_mesh((4, 4))
except Exception as error:
    print(error)
dist.init_process_group("tpu_dist")
print(torch.tpu.topology_aware_mesh((4, 4)).tolist())
print(torch.tpu.distributed.topology_aware_mesh((16,)).tolist())
for asked in (dict(mesh_shape=(4, 3)), dict(mesh_shape=(16,), topology="ring"),
              dict(mesh_shape=(16,), topology="multi_slice"),
              dict(mesh_shape=(8,), topology="multi_slice", dcn_mesh_shape=(2,))):
    try:
        print(torch.tpu.topology_aware_mesh(**asked))
    except Exception as error:
        print(type(error).__name__, error)
"""


def _places(option: str) -> list[Place]:
    return targets.create(f"sim:{option}", Settings(numerics=False)).places()


def _arranged(places: list[Place], *shape: int, outer: tuple[int, ...] = ()) -> Any:
    options = dict.fromkeys(
        ("process_is_granule", "allow_split_physical_axes", "contiguous_submeshes"), False
    )
    return np.array(targets.arranged(places, shape, outer, **options))


def test_a_ring_of_neighbours() -> None:
    places = _places("v6e:4x4")
    ring = _arranged(places, 4, 4)
    assert sorted(ring.flat) == list(range(16))
    for row in (*ring, *ring.T):
        here = np.array([places[rank].coords for rank in row])
        assert np.abs(np.diff(here, axis=0)).sum(axis=1).tolist() == [1, 1, 1]


def test_ranks_in_order_would_not_be_neighbours() -> None:
    places = _places("v6e:4x4")
    (x, y, _), (u, v, _) = places[3].coords, places[4].coords  # machine by machine
    assert abs(x - u) + abs(y - v) > 1


def test_a_target_without_places_keeps_ranks_in_order() -> None:
    assert targets.create("cpu").places() == []
    assert _places("v6e") == []  # one chip


def test_as_one_rank_of_a_slice() -> None:
    made = subprocess.run(
        [sys.executable, "-c", IMAGINED],
        capture_output=True,
        text=True,
        env={
            "PATH": "",
            "TORCHTPU_TARGET": "sim:v6e:4x4",
            "TORCHTPU_SIM_NUMERICS": "0",
            "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
        },
        check=False,
    )
    lines = made.stdout.splitlines()
    assert len(lines) == 7, made.stderr
    assert "process group must be initialized" in lines[0]
    assert lines[1] == str(_arranged(_places("v6e:4x4"), 4, 4).tolist())
    assert sorted(eval(lines[2])) == list(range(16))
    assert "TpuError [topology_aware_mesh] expected sizes whose product is the 16" in lines[3]
    assert "unknown topology 'ring'" in lines[4]
    assert "expected dcn_mesh_shape" in lines[5]
    assert "TpuError [topology_aware_mesh]" in lines[6]  # one slice is not two


def test_it_needs_a_group() -> None:
    with pytest.raises(TpuError, match="process group must be initialized"):
        torch.tpu.topology_aware_mesh((1,))
