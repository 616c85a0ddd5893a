"""Torch's gloo beside the groups of this backend: for tensors on the CPU, and its own calls."""

from __future__ import annotations

from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from torchtpu.private import torch as private


def over_gloo(store: Any, rank: int, size: int, timeout_s: float) -> Any:
    """Return a group of gloo with the same members, who meet in the group's store."""
    inner = dist.distributed_c10d.PrefixStore("host", store)
    gloo = private.gloo(inner, rank, size, timeout=timedelta(seconds=timeout_s))
    made: Any = dist.ProcessGroup(inner, rank, size)
    made._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    made._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return made


def serve_monitored_barrier(kind: type) -> None:
    """Let torch's monitored_barrier, which asks for gloo, take groups of a kind too."""
    for_gloo = dist.distributed_c10d.monitored_barrier
    if hasattr(for_gloo, "__wrapped__"):
        return

    @wraps(for_gloo)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        chosen = dist.group.WORLD if group is None else group
        if not isinstance(chosen, kind):
            return for_gloo(group, timeout, wait_all_ranks)
        return chosen.monitored_barrier(timeout, wait_all_ranks)  # type: ignore[attr-defined]

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier
