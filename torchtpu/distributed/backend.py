"""Backend "tpu_dist" of torch.distributed, and its alias "tpu"."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from torchtpu import executor
from torchtpu.errors import TpuError

NAMES = ("tpu_dist", "tpu")


def register() -> None:
    """Make the backend known to torch.distributed, where this torch has it."""
    if not dist.is_available():
        return
    for name in NAMES:
        if name not in dist.Backend.backend_list:
            dist.Backend.register_backend(name, _create, extended_api=True, devices=["tpu"])


def _create(options: Any, _backend_options: Any) -> Any:
    from torchtpu.distributed.fake_world import FakeWorld, ask_nobody

    target = executor.current().target
    if not target.is_abstract:
        raise TpuError(
            f"[tpu_dist] expected target sim without numerics, whose other ranks are imagined, got "
            f"target {target.name}: collectives between processes are not there yet; run the "
            "script by torchtpu-perf estimate --topology, or use backend 'gloo' on device cpu"
        )
    ask_nobody()
    ranks = options.global_ranks_in_group or range(options.group_size)
    return FakeWorld(options.group_rank, ranks, _world(options), options.group_id)


def _world(options: Any) -> int:
    return dist.get_world_size() if dist.is_initialized() else options.group_size
