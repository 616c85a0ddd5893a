"""Ranks that differ: benign ways compute the same, harmful ones are an error on every rank."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.distributed import failures, world

pytestmark = pytest.mark.timeout(480)  # several processes that all import and compile

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
    "absent": ["rank 1 did not come in 2 s", None, "rank 1 did not come in 2 s"],
    "different_groups": [
        "rank 1, 2 did not come in 2 s.*rank 0: all_reduce",
        "rank 0(, 2)? did not come in 2 s",
        "rank 0(, 1)? did not come in 2 s",
    ],
    "message_of_another_size": [r"rank 0: send.float32\[8\].*rank 1: recv.float32\[4\]"] * 2
    + [None],
    "uneven_parts": ["4 elements sent by rank 0 to rank 0, whose output has room for 2"] * SIZE,
    "waits_for_a_future": ["rank 1 did not come in 2 s", None, "rank 1 did not come in 2 s"],
    "trains_alone": ["rank 1 did not come in 6 s", None, "rank 1 did not come in 6 s"],
    "limited": ["rank 1 did not come in 0.5", None, "rank 1 did not come in 0.5"],
}


def _is_told(name: str, said: str, expected: str) -> bool:
    is_error = re.search("Collective(Error|Timeout)|TpuError", said)
    has_no_line = name in ("uneven_parts", "trains_alone")  # one is computed, one is autograd's
    names_line = has_no_line or "failures.py:" in said
    return bool(is_error and names_line and re.search(expected, said, re.DOTALL))


def test_ranks_that_differ() -> None:
    """Benign differences change nothing; of harmful ones every rank learns that they concern."""
    found = world.results(failures.each, SIZE, [*BENIGN, *HARMFUL])
    assert {name: [f[name] for f in found] for name in BENIGN} == BENIGN
    wrong = [
        (name, rank, found[rank][name])
        for name, told in HARMFUL.items()
        for rank, expected in enumerate(told)
        if expected is not None and not _is_told(name, found[rank][name], expected)
    ]
    assert not wrong


@pytest.mark.parametrize("name", ["killed", "raises"])
def test_a_rank_that_is_gone_is_named(name: str) -> None:
    first, lost, third = world.outcomes(getattr(failures, name), SIZE, timeout_s=20.0)
    for outcome in (first, third):
        assert "rank 1 is gone" in outcome.result, outcome
        assert float(re.findall(r"after ([\d.]+) s", outcome.result)[0]) < 20.0
    assert lost.exitcode == -9 if name == "killed" else "a mistake of the user's" in lost.error


@pytest.mark.parametrize("name", ["killed_inside", "stopped"])
def test_no_collective_hangs(name: str) -> None:
    first, second = world.outcomes(
        getattr(failures, name), 2, 1 << 20, timeout_s=20.0, patience_s=100.0
    )
    told = "rank 1 is gone|did not come in 4|did not end in 4|another rank stands still"
    assert re.search(told, str(first.result)), first
    assert float(re.findall(r"after ([\d.]+) s", first.result)[0]) < 30.0
    assert name == "killed_inside" or second.result  # it ends too, when it goes on
