"""What the groups of backend "tpu_dist" share: torch's ProcessGroup, and a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:  # torch's own stub has overloads that nobody calls

    class _ProcessGroup:
        def __init__(self, rank: int, size: int) -> None: ...
        def rank(self) -> int: ...
        def size(self) -> int: ...

else:
    _ProcessGroup = dist.ProcessGroup


class NamedGroup(_ProcessGroup):
    """A group of `size` members, of which this process is number `rank`."""

    def __init__(self, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)
        self._name = name

    def getBackendName(self) -> str:  # torch's name
        """Return the name of the backend."""
        return "tpu_dist"

    @property
    def group_name(self) -> str:
        """The name by which torch finds the group."""
        return self._name

    pg_name = group_name

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors the group takes, which torch asks for."""
        return [torch.device("tpu"), torch.device("cpu")]
