"""torch's ProcessGroup, as groups in Python derive from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:  # torch's own stub has overloads that nobody calls

    class ProcessGroup:
        """A group of `size` members, of which this process is number `rank`."""

        def __init__(self, rank: int, size: int) -> None: ...
        def rank(self) -> int: ...
        def size(self) -> int: ...

else:
    ProcessGroup = dist.ProcessGroup
