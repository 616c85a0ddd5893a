"""Boards, in shared memory and in a store: what members say, and engines that wait for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed import conformance, world
from torchtpu.distributed.board import GAVE_UP, Board, SharedBoard, StoreBoard
from torchtpu.distributed.engine import Call, CollectiveError, Engine, signature
from torchtpu.distributed.work import Work

Pair = tuple[Board, Board]


@pytest.fixture(params=["shared memory", "store"])
def boards(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The boards of two ranks, here in one process."""
    if request.param == "store":
        store = dist.HashStore()
        made: Pair = StoreBoard(0, store), StoreBoard(1, store)
    else:
        first = SharedBoard(0, 2)
        made = first, SharedBoard(1, 2, first.path)
    yield made
    for board in made:
        with suppress(OSError):  # an engine has closed it
            board.close()


def test_a_record_is_complete_when_all_have_posted(boards: Pair) -> None:
    first, second = boards
    a = first.post(7, 0, 2, 11, b"mine", [])
    assert first.read(a, 2) is None
    assert first.texts(a, 2) == ["", None]
    assert second.is_begun(7, 0)
    assert not second.is_begun(7, 1)
    b = second.post(7, 1, 2, 12, b"other", [])
    second.explain(b, 1, "all_reduce at train.py:3")
    for board, record in ((first, a), (second, b)):
        number, signatures = board.read(record, 2) or (0, [])
        assert (number, list(signatures)) == (1, [11, 12])
        assert board.payloads(record, 2) == [b"mine", b"other"]
        assert board.texts(record, 2) == ["", "all_reduce at train.py:3"]
    assert not first.withdraw(a, 0, 2, "too late")


def test_records_are_numbered_in_the_order_of_their_ends(boards: Pair) -> None:
    first, second = boards
    records = [first.post(key, 0, 2, 3, b"", []) for key in (5, 6)]
    for key in (6, 5):
        second.post(key, 1, 2, 3, b"", [])
    assert [(first.read(r, 2) or (0,))[0] for r in records] == [2, 1]


def test_a_member_that_gave_up_is_seen_by_who_comes_later(boards: Pair) -> None:
    first, second = boards
    a = first.post(9, 0, 2, 3, b"", [])
    assert first.withdraw(a, 0, 2, "gave up: rank 1 did not come")
    b = second.post(9, 1, 2, 3, b"", [])
    assert GAVE_UP in (second.read(b, 2) or (0, []))[1]
    assert second.texts(b, 2)[0] == "gave up: rank 1 did not come"


def test_ended_records_make_room(boards: Pair) -> None:
    first, second = boards
    ended: tuple[list[Any], list[Any]] = [], []
    for key in range(1, 1000):
        for place, board in enumerate((first, second)):
            record = board.post(key, place, 2, key, b"", ended[place])
            assert not ended[place]
            ended[place].append((record, 2))


def _call(place: int, same: object, engine: Engine, ran: list[Any]) -> Call:
    def launch(_index: int, _payloads: Sequence[bytes]) -> list[Any]:
        ran.append(place)
        return []

    work = Work(lambda _, seconds: engine.wait(call, seconds), [])
    call = Call(
        name="all_reduce",
        channels=(1,),
        ranks=((0, 1),),
        place=place,
        signature=signature(same),
        words=f"all_reduce({same})",
        launch=launch,
        work=work,
        timeout_s=20.0,
    )
    return call


def test_engines_launch_what_both_call_and_nothing_else(boards: Pair) -> None:
    engines = [Engine(board, lambda: None, n, 2) for n, board in enumerate(boards)]
    ran: list[Any] = []
    works = [e.submit(_call(n, "float32[4]", e, ran)) for n, e in enumerate(engines)]
    for work in works:
        work.wait()
    assert sorted(ran) == [0, 1]
    works = [e.submit(_call(n, f"float32[{n}]", e, ran)) for n, e in enumerate(engines)]
    for work in works:
        with pytest.raises(CollectiveError, match=r"rank 0: .*\[0\]\)\n  rank 1: .*\[1\]\)"):
            work.wait()
    assert len(ran) == 2
    start = time.monotonic()
    engines[0].close()  # a moment behind its last launch, as nobody else leaves
    assert time.monotonic() - start < 5.0
    start = time.monotonic()
    engines[1].close()
    assert time.monotonic() - start < 1.5  # at once


def by_store(rank: int) -> int:
    """Be a rank of a world whose processes share no memory."""
    from torchtpu.distributed import meeting

    meeting._shared = lambda *_: None
    dist.init_process_group("tpu_dist")
    gloo = dist.new_group(backend="gloo")
    count = 0
    for name, run in conformance.cases(rank, dist.get_world_size()):
        if "float32" in name:
            try:
                expected = run(gloo, "cpu")
            except (RuntimeError, ValueError):
                continue
            for a, b in zip(run(dist.group.WORLD, "tpu"), expected, strict=True):
                assert torch.equal(a.cpu(), b), name
            count += 1
    dist.barrier()
    dist.destroy_process_group()
    return count


@pytest.mark.timeout(480)
def test_a_world_without_shared_memory_computes_the_same() -> None:
    first, second = world.results(by_store, 2, join=False)
    assert first == second > 5
