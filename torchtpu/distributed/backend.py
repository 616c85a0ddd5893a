"""Backend "tpu_dist" of torch.distributed, and its alias "tpu"."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from torchtpu import config, executor, targets

NAMES = ("tpu_dist", "tpu")


def register() -> None:
    """Make the backend known to torch.distributed, where this torch has it."""
    if not dist.is_available():
        return
    for name in NAMES:
        if name not in dist.Backend.backend_list:
            dist.Backend.register_backend(name, _create, extended_api=True, devices=["tpu"])


def _create(options: Any, _backend_options: Any) -> Any:
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group) or list(range(size))
    if _is_imagined():
        from torchtpu.distributed.fake_world import FakeWorld, ask_nobody

        ask_nobody()
        world = dist.get_world_size() if dist.is_initialized() else size
        return FakeWorld(rank, ranks, world, options.group_id)
    from torchtpu.distributed import ddp, dtensor, graphs, meeting
    from torchtpu.distributed.group import TpuGroup
    from torchtpu.distributed.host_group import serve_monitored_barrier

    is_first = not dist.is_initialized()
    if is_first:
        meeting.meet(rank, size, options.store, options.timeout.total_seconds())
    serve_monitored_barrier(TpuGroup)
    graphs.serve()
    ddp.prepare()
    dtensor.prepare()
    store = meeting.scoped(options.store)
    return TpuGroup(meeting.engine(), rank, ranks, options.group_id, store, options.timeout)


def _is_imagined() -> bool:
    """Tell whether the other ranks are: arrays have no values then."""
    if executor.is_made():
        return executor.current().target.is_abstract
    return targets.is_abstract(config.get("target"), numerics=config.get("sim_numerics"))
