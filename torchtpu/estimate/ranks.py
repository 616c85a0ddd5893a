"""One process that takes itself for a rank of many, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torchtpu.private import torch as private


def imitate_torchrun(rank: int, world: int, local: int) -> None:
    """Set torchrun's variables; `local` is the number of ranks on one host."""
    hosts = -(-world // local)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank % local),
        LOCAL_WORLD_SIZE=str(min(world, local)),
        GROUP_RANK=str(rank // local),
        GROUP_WORLD_SIZE=str(hosts),
        MASTER_ADDR="localhost",
        MASTER_PORT="0",
    )


def meet_nobody(rank: int, world: int) -> None:
    """Let init_process_group wait for no other process."""

    def rendezvous(_url: str, *_: Any, **__: Any) -> Iterator[tuple[Any, int, int]]:
        yield private.HashStore(), rank, world

    private.rendezvous_handlers["env"] = rendezvous
