"""Processes that find each other, and nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from torchtpu.distributed import meeting
from torchtpu.distributed.engine import CollectiveError


def _names(store: Any, size: int, *ranks: int) -> list[str]:
    with ThreadPoolExecutor(size) as pool:
        named = partial(meeting.named, size=size, store=store, timeout_s=20.0)
        return list(pool.map(named, ranks))


def test_processes_that_are_started_again_have_another_name() -> None:
    """torchrun keeps its store, and with it all that was said before."""
    store, seen = dist.HashStore(), set()
    for ranks in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        names = set(_names(store, 3, *ranks))
        assert len(names) == 1
        seen |= names
    assert len(seen) == 3


def test_a_rank_of_before_is_not_taken_for_one_that_comes() -> None:
    store = dist.HashStore()
    _names(store, 3, 0, 1, 2)
    store.set("come/1", "whoever was killed before rank 0 answered")
    with pytest.raises(CollectiveError, match=r"rank 1, 2 did not come in 0\.2 s"):
        meeting.named(0, 3, store, 0.2)
    assert len(set(_names(store, 3, 0, 1, 2))) == 1


def test_rank_0_that_does_not_come_is_named() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(CollectiveError, match="rank 0 did not come"):
        meeting.named(1, 2, store, 0.2)
