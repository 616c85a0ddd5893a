"""Ranks that differ: what is benign computes the same, what is harmful is an error on every rank."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from tests.distributed import failures, world

SIZE = 3
BENIGN: dict[str, Any] = {
    "logs_on_one": [4.0 * SIZE**3] * SIZE,
    "computes_on_one": [4.0 * SIZE**3] * SIZE,
    "different_shapes_before": [3.0 + 4.0 + 5.0] * SIZE,
    "comes_late": [4.0 * SIZE] * SIZE,
    "orders_of_groups": [[SIZE * 1.0, SIZE * 2.0]] * SIZE,
    "exchanges_crosswise": [2.0, 1.0, 0.0],
    "receives_from_anybody": [3.0, 0.0, 0.0],
}
# What every rank is told, with who called what; None: a rank that has nothing to be told.
HARMFUL: dict[str, list[str | None]] = {
    "different_ops": ["all_gather_into_tensor.*rank.* 1, 2: all_reduce"] * SIZE,
    "different_shapes": [r"ranks 0, 2: all_reduce\(float32\[4\].*rank 1: all_reduce\(float32\[8\]"]
    * SIZE,
    "different_dtypes": ["rank 0: all_reduce.float32.*ranks 1, 2: all_reduce.int32"] * SIZE,
    "different_reductions": ["rank 0: .*reduce=sum.*ranks 1, 2: .*reduce=max"] * SIZE,
    "different_roots": ["rank 0: .*root=0.*rank 1: .*root=1.*rank 2: .*root=2"] * SIZE,
    "different_counts": [r"rank 0: all_reduce.float32\[8\].*ranks 1, 2: all_reduce"] * SIZE,
    "absent": ["rank 1 did not come in 2 s.*ranks 0, 2: all_reduce", None, "rank 1 did not come"],
    "different_groups": [
        "rank 1, 2 did not come in 2 s.*rank 0: all_reduce",
        "rank 0 did not come in 2 s.*rank.* 1",
        "rank 0 did not come in 2 s",
    ],
    "message_of_another_size": [r"rank 0: send.float32\[8\].*rank 1: recv.float32\[4\]"] * 2
    + [None],
    "uneven_parts": ["4 elements sent by rank 0 to rank 0, whose output has room for 2"] * SIZE,
    "limited": ["rank 1 did not come", None, "rank 1 did not come"],
}


@cache
def _found() -> list[dict[str, Any]]:
    return world.results(failures.each, SIZE, [*BENIGN, *HARMFUL])


@pytest.mark.parametrize("name", BENIGN)
def test_benign_differences_compute_the_same(name: str) -> None:
    assert [found[name] for found in _found()] == BENIGN[name]


@pytest.mark.parametrize("name", HARMFUL)
def test_harmful_differences_are_an_error_on_every_rank(name: str) -> None:
    for rank, (found, expected) in enumerate(zip(_found(), HARMFUL[name], strict=True)):
        said = found[name]
        if expected is None:
            continue
        assert re.match("Collective(Error|Timeout)|TpuError", said), f"rank {rank}: {said}"
        assert re.search(expected, said, re.DOTALL), f"rank {rank}: {said}"
        assert name == "uneven_parts" or "failures.py:" in said, said  # the user's line


@pytest.mark.parametrize("name", ["killed", "raises"])
def test_a_rank_that_is_gone_is_named(name: str) -> None:
    first, lost, third = world.outcomes(getattr(failures, name), SIZE, timeout_s=20.0)
    for outcome in (first, third):
        assert "rank 1 is gone" in outcome.result, outcome
        assert float(re.findall(r"after ([\d.]+) s", outcome.result)[0]) < 20.0
    assert lost.exitcode == -9 if name == "killed" else "a mistake of the user's" in lost.error


@pytest.mark.parametrize("name", ["killed_inside", "stopped"])
def test_no_collective_hangs(name: str) -> None:
    first, second = world.outcomes(getattr(failures, name), 2, 1 << 20, timeout_s=4.0)
    assert re.search("rank 1 is gone|did not come in 4 s|did not end in 4 s", first.result), first
    assert float(re.findall(r"after ([\d.]+) s", first.result)[0]) < 10.0
    if name == "stopped":
        assert second.result.startswith("Collective"), second
