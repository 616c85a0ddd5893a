"""DistributedDataParallel with unused parameters: the counts of their use stay on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from torchtpu.eager.copy_ops import counts_on_host

if TYPE_CHECKING:

    class _Reducer:
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def _set_static_graph(self) -> None: ...

else:
    _Reducer = dist.Reducer


class Reducer(_Reducer):
    """DDP's reducer, whose int32 map of used parameters is a CPU tensor, reduced over gloo.

    For a map on the device the reducer copies by pinned memory, whose allocator only C++ can give.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with counts_on_host():
            super().__init__(*args, **kwargs)

    def _set_static_graph(self) -> None:
        with counts_on_host():
            super()._set_static_graph()


def prepare() -> None:
    """Have DDP make this reducer."""
    vars(dist)["Reducer"] = Reducer  # the name by which it does
