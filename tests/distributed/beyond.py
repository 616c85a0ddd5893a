"""What gloo on CPU tensors has no answer to, or is no collective; runs in every rank of a world."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torchtpu  # noqa: F401  # names device tpu
from tests.distributed import conformance
from torchtpu.distributed.calling import Caller


def every(rank: int, names: list[str]) -> dict[str, str]:
    """Run functions one after the other; return the errors."""
    wrong = {}
    for name in names:
        try:
            globals()[name](rank, dist.get_world_size())
        except Exception as error:
            wrong[name] = "".join(traceback.format_exception(error))
        dist.barrier()
    return wrong


def equal(found: torch.Tensor, *expected: float) -> None:
    """Assert that a tensor has these values."""
    torch.testing.assert_close(found.cpu().double(), torch.tensor(expected).double())


def averages(rank: int, size: int) -> None:
    """ReduceOp.AVG and PREMUL_SUM, which gloo lacks."""
    mean = sum(range(size)) / size
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.full((2,), float(rank), dtype=dtype, device="tpu")
        dist.all_reduce(x, dist.ReduceOp.AVG)
        equal(x, mean, mean)
    x = torch.full((2,), 3 * rank, device="tpu")
    dist.all_reduce(x, dist.ReduceOp.AVG)
    equal(x, *[3 * sum(range(size)) // size] * 2)
    y = torch.ones(size, device="tpu") * (rank + 1)
    kept = torch.empty(1, device="tpu")
    dist.reduce_scatter_tensor(kept, y, dist.ReduceOp.AVG)
    equal(kept, mean + 1)
    z = torch.ones(2, device="tpu")
    dist.all_reduce(z, dist._make_nccl_premul_sum(0.5))
    equal(z, size / 2, size / 2)


def coalesced(rank: int, size: int) -> None:
    """The coalescing manager: several collectives as one."""
    xs = [torch.ones(n + 1, device="tpu") * rank for n in range(3)]
    with dist._coalescing_manager(device=torch.device("tpu"), async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    for x in xs:
        equal(x, *[sum(range(size))] * len(x))
    outs = [torch.empty(size * (n + 1), device="tpu") for n in range(2)]
    with dist._coalescing_manager():
        for n, out in enumerate(outs):
            dist.all_gather_into_tensor(out, torch.full((n + 1,), float(rank), device="tpu"))
    equal(outs[1], *[r for r in range(size) for _ in range(2)])


def functional(rank: int, size: int) -> None:
    """torch.distributed._functional_collectives, out of graphs."""
    import torch.distributed._functional_collectives as funcol

    world = list(range(size))
    x = torch.full((size,), float(rank), device="tpu")
    equal(funcol.all_reduce(x, "sum", world), *[sum(range(size))] * size)
    equal(funcol.all_gather_tensor(x[:1], 0, world), *range(size))
    equal(funcol.reduce_scatter_tensor(x, "sum", 0, world), sum(range(size)))
    equal(funcol.broadcast(x, 1, world), *[1.0] * size)
    swapped = funcol.all_to_all_single(x, [1] * size, [1] * size, world)
    equal(swapped, *range(size))


def in_graphs(rank: int, size: int) -> None:
    """Collectives of a compiled graph are a part of its program, and are launched with it."""
    import torch.distributed._functional_collectives as funcol

    group: Any = dist.group.WORLD

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = funcol.all_reduce(x * 2, "sum", group)
        rows = funcol.all_gather_tensor(whole[:2] + rank, 0, group)
        kept = funcol.reduce_scatter_tensor(rows, "avg", 0, group)
        swapped = funcol.all_to_all_single(rows, None, None, group)
        return whole + 1, kept.sum() + swapped.sum()

    x = torch.arange(3.0, device="tpu") + rank
    expected = step(x)
    compiled = torch.compile(step, fullgraph=True)
    compiled(x)
    with counted("_submit") as alone, counted("run_graph") as graphs:
        found = compiled(x)
    assert (alone, graphs) == ([], [True]), (alone, graphs)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.cpu(), b.cpu()), (a, b)


def in_different_graphs(rank: int, size: int) -> None:
    """Where ranks run different graphs, their collectives meet one by one."""
    import torch.distributed._functional_collectives as funcol

    group: Any = dist.group.WORLD

    def step(x: torch.Tensor, *, logs: bool) -> torch.Tensor:
        whole: torch.Tensor = funcol.all_reduce(x, "sum", group)
        return whole * 3 if logs else whole + 1

    compiled = torch.compile(step, fullgraph=True)
    x = torch.ones(2, device="tpu")
    with counted("run_graph") as graphs:
        equal(compiled(x, logs=rank == 0), *[3 * size if rank == 0 else size + 1] * 2)
        equal(compiled(x, logs=True), *[3 * size] * 2)  # and together again
    assert graphs == [False, True], graphs
    # a rank that runs the same without a graph: everybody learns of it
    run = step if rank == 0 else compiled
    with pytest.raises(RuntimeError, match="expected the same collective"):
        run(x, logs=True)


@contextmanager
def counted(name: str) -> Iterator[list[Any]]:
    """Note what a method of groups returns, when it is called."""
    method = getattr(Caller, name)
    found: list[Any] = []

    def noting(*args: Any, **kwargs: Any) -> Any:
        found.append(method(*args, **kwargs))
        return found[-1]

    setattr(Caller, name, noting)
    try:
        yield found
    finally:
        setattr(Caller, name, method)


def groups(rank: int, size: int) -> None:
    """Groups of some ranks, and split ones."""
    pairs = [dist.new_group([a, a + 1]) for a in range(0, size - 1, 2)]
    x = torch.full((1,), float(rank), device="tpu")
    mine = rank // 2
    if mine < len(pairs):
        dist.all_reduce(x, group=pairs[mine])
        equal(x, 4 * mine + 1)
    odd = dist.new_group([size - 1, 0])  # not in the order of the numbers
    if rank in (0, size - 1):
        y = torch.empty(2, device="tpu")
        z = torch.full((1,), float(rank), device="tpu")
        dist.all_gather_into_tensor(y, z, group=odd)
        equal(y, *sorted((size - 1, 0)))


def objects(rank: int, size: int) -> None:
    """Objects, by every call that takes them."""
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": r} for r in range(size)], found
    sent = [("a", rank)] if rank == 1 else [None]
    dist.broadcast_object_list(sent, src=1)
    assert sent == [("a", 1)], sent
    came: list[Any] = [None]
    dist.scatter_object_list(came, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert came == [f"for {rank}"], came
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered in (None, list(range(size))), gathered


def uneven(rank: int, size: int) -> None:
    """Lists whose tensors differ in size, which gloo refuses."""
    parts = [torch.empty(n + 1, device="tpu") for n in range(size)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank), device="tpu"))
    for n, part in enumerate(parts):
        equal(part, *[n] * (n + 1))
    kept = torch.empty(rank + 1, device="tpu")
    dist.reduce_scatter(kept, [torch.ones(n + 1, device="tpu") for n in range(size)])
    equal(kept, *[size] * (rank + 1))


def barriers(rank: int, size: int) -> None:
    """Barriers of both kinds."""
    del rank, size
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()


def works(rank: int, size: int) -> None:
    """A Work says when it is done, and its future has the tensors."""
    x = torch.ones(3, device="tpu")
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    equal(future.wait()[0], *[size] * 3)
    assert work.result()[0] is x or torch.equal(work.result()[0].cpu(), x.cpu())


def from_two_threads(rank: int, size: int) -> None:
    """Threads take turns to ask (as autograd's and the program's do) and nobody waits meanwhile."""
    tensors = [torch.full((1 + 70_000 * (n % 3),), float(rank), device="tpu") for n in range(60)]
    with ThreadPoolExecutor(1) as other:
        works = []
        for n, x in enumerate(tensors):
            ask = partial(dist.all_reduce, x, async_op=True)
            works.append(other.submit(ask).result() if n % 4 > 1 else ask())
        for work in works:
            work.wait()
    for x in tensors:
        assert (x == sum(range(size))).all(), x


def futures(rank: int, size: int) -> None:
    """What hangs on a future may wait for another collective, as PowerSGD's hook does."""
    del rank

    def again(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        (x,) = done.value()
        work = dist.all_reduce(x, async_op=True)
        made: torch.Tensor = work.get_future().wait()[0]
        return made

    for _ in range(20):
        first = dist.all_reduce(torch.ones(2, device="tpu"), async_op=True).get_future()
        equal(first.then(again).wait(), size**2, size**2)


def sparse(rank: int, size: int) -> None:
    """Sums of sparse tensors with other entries on each rank."""
    places = torch.tensor([[0, rank + 1]])
    values = torch.tensor([1.0, rank + 1.0])
    x = torch.sparse_coo_tensor(places, values, (size + 2,)).to("tpu")
    dist.all_reduce(x)
    equal(x.to_dense(), size, *range(1, size + 1), 0)
    with pytest.raises(RuntimeError, match="reduction sum"):
        dist.all_reduce(x, dist.ReduceOp.MAX)


def inputs_stay(rank: int, size: int) -> None:
    """What a collective was given may be overwritten before it runs."""
    x = torch.full((4,), float(rank), device="tpu")
    out = torch.empty(4 * size, device="tpu")
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    x += 100
    work.wait()
    equal(out, *[r for r in range(size) for _ in range(4)])


def host_tensors(rank: int, size: int) -> None:
    """Tensors on the CPU go over gloo, in the same group: all that gloo itself does there."""
    gloo = dist.new_group(backend="gloo")
    for name, run in conformance.cases(rank, size):
        try:
            expected = run(gloo, "cpu")
        except (RuntimeError, ValueError):
            continue
        found = run(dist.group.WORLD, "cpu")
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b), name


def wrong_calls(rank: int, size: int) -> None:
    """Mistakes that every rank makes are errors that say what was expected."""
    calls: dict[str, Any] = {
        "elements": lambda: dist.all_gather_into_tensor(_ones(3 * size), _ones(2)),
        "non-integral": lambda: dist.all_reduce(_ones(2), dist.ReduceOp.BAND),
        "add up": lambda: dist.all_to_all_single(_ones(size), _ones(size), [1] * size, [2] * size),
        "same as the rank": lambda: dist.send(_ones(1), rank),
        "on tpu, or all on cpu": lambda: dist.all_gather([torch.ones(1)] * size, _ones(1)),
    }
    for words, call in calls.items():
        with pytest.raises((RuntimeError, ValueError), match=words):
            call()


def _ones(count: int) -> torch.Tensor:
    return torch.ones(count, device="tpu")


def compiles_once(rank: int, size: int) -> None:
    """A collective of a shape is compiled once, however often it is called."""
    x = torch.ones(321, device="tpu")
    before = torch.tpu._get_cache_stats()
    dist.all_reduce(x)
    after = torch.tpu._get_cache_stats()
    for _ in range(3):
        dist.all_reduce(x)
    last = torch.tpu._get_cache_stats()
    counts = [s["per_entry_stats"].get("all_reduce", 0) for s in (before, after, last)]
    assert counts[1] - counts[0] <= 1, counts  # 0 where another rank's was loaded
    assert counts[2] == counts[1], counts


def compiled_by(rank: int) -> dict[str, int]:
    """Compute and reduce in shapes that nobody has used; return what this rank compiled."""
    x = torch.arange(4321.0, device="tpu") + rank
    y = x.cos() * 3 + x.square()
    dist.all_reduce(y)
    assert y.sum().isfinite()
    counts: dict[str, int] = torch.tpu._get_cache_stats()["per_entry_stats"]
    return counts


NAMES = [
    *("averages", "coalesced", "functional", "in_graphs", "in_different_graphs", "groups"),
    *("objects", "uneven", "barriers", "works", "from_two_threads", "futures", "sparse"),
    *("inputs_stay", "host_tensors", "wrong_calls", "compiles_once"),
]
