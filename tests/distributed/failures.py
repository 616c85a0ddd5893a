"""Ways for ranks to differ or to fail; each runs in every rank of a world."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def _said(run: Any) -> str:
    """Run something that has to fail; return the error."""
    start = time.monotonic()
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__} after {time.monotonic() - start:.1f} s: {error}"
    return "no error"


def _for_seconds(seconds: float, run: Any) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run()


def ones(count: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return ones on the device."""
    return torch.ones(count, dtype=dtype, device="tpu")


SLOW = {  # end at the timeout, in seconds
    **dict.fromkeys(("absent", "different_groups", "waits_for_a_future"), 2.0),
    "trains_alone": 6.0,
}


def each(rank: int, names: list[str]) -> dict[str, Any]:
    """Run functions one after the other, each in a group of its own."""
    found = {}
    for name in names:
        dist.barrier()
        group = dist.new_group(timeout=timedelta(seconds=SLOW.get(name, 30.0)))
        found[name] = globals()[name](rank, group)
    dist.barrier()
    return found


# Benign: ranks do different things alone, and the same together --------------------------------


def logs_on_one(rank: int, group: Any) -> float:
    """Rank 0 reads, prints and saves values between collectives."""
    x = ones()
    for _ in range(3):
        dist.all_reduce(x, group=group)
        if rank == 0:
            assert repr(x)
            assert x.tolist()[0] == x.sum().item() / len(x)
    return float(x.sum())


def computes_on_one(rank: int, group: Any) -> float:
    """Rank 0 evaluates with ops, shapes and compiles that the others don't have."""
    x = ones()
    for step in range(3):
        if rank == 0:
            y = torch.randn(8 + step, 8 + step, device="tpu")
            torch.linalg.qr(y)
            (y @ y).relu().sum().item()
        dist.all_reduce(x, group=group)
    return float(x.sum())


def different_shapes_before(rank: int, group: Any) -> float:
    """Ranks have batches of different lengths, and gradients of the same."""
    x = torch.ones(3 + rank, 4, device="tpu")
    total = x.sum(0)
    dist.all_reduce(total, group=group)
    return float(total[0])


def comes_late(rank: int, group: Any) -> float:
    """A rank needs a second longer before a collective."""
    x = ones()
    if rank == 1:
        time.sleep(1.0)
    dist.all_reduce(x, group=group)
    return float(x.sum())


def orders_of_groups(rank: int, group: Any) -> list[float]:
    """Ranks start collectives of two groups in different orders, without waiting in between."""
    groups = [group, dist.new_group()]
    tensors = [ones(), 2 * ones()]
    order = (0, 1) if rank == 0 else (1, 0)
    works = [dist.all_reduce(tensors[n], group=groups[n], async_op=True) for n in order]
    for work in works:
        work.wait()
    return [float(t[0]) for t in tensors]


def exchanges_crosswise(rank: int, group: Any) -> float:
    """Both ranks of a pair send first and receive then, without waiting in between."""
    other = 1 - rank
    x, y = ones() * (rank + 1), ones() * 0
    if rank > 1:
        return 0.0
    works: list[Any] = [dist.isend(x, other, group), dist.irecv(y, other, group)]
    for work in works:
        work.wait()
    return float(y[0])


def receives_from_anybody(rank: int, group: Any) -> float:
    """Rank 0 takes messages as they come."""
    if rank:
        dist.send(ones() * rank, 0, group)
        return 0.0
    total = 0.0
    for _ in range(dist.get_world_size() - 1):
        y = ones() * 0
        source = dist.recv(y, group=group)
        assert float(y[0]) == source
        total += float(y[0])
    return total


# Harmful: everybody has to learn of it ---------------------------------------------------------


def different_ops(rank: int, group: Any) -> str:
    """One rank gathers where the others reduce."""
    x = ones()
    if rank == 0:
        return _said(lambda: dist.all_gather_into_tensor(ones(4 * dist.get_world_size()), x, group))
    return _said(lambda: dist.all_reduce(x, group=group))


def different_shapes(rank: int, group: Any) -> str:
    """One rank reduces more elements."""
    return _said(lambda: dist.all_reduce(ones(4 + 4 * (rank == 1)), group=group))


def different_dtypes(rank: int, group: Any) -> str:
    """One rank reduces another dtype of the same size."""
    return _said(
        lambda: dist.all_reduce(ones(4, torch.int32 if rank else torch.float32), group=group)
    )


def different_reductions(rank: int, group: Any) -> str:
    """One rank wants the maximum, the others the sum."""
    op = dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM
    return _said(lambda: dist.all_reduce(ones(), op, group))


def different_roots(rank: int, group: Any) -> str:
    """Every rank broadcasts from itself."""
    return _said(lambda: dist.broadcast(ones(), rank, group))


def different_counts(rank: int, group: Any) -> str:
    """One rank leaves out a collective and goes on to the next, of another size."""
    if rank == 0:
        return _said(lambda: dist.all_reduce(ones(8), group=group))
    return _said(lambda: dist.all_reduce(ones(4), group=group))


def absent(rank: int, group: Any) -> str:
    """One rank never comes."""
    if rank == 1:
        return ""
    return _said(lambda: dist.all_reduce(ones(), group=group))


def different_groups(rank: int, group: Any) -> str:
    """Ranks wait in different groups of the same members."""
    limit = timedelta(seconds=2)
    groups = [group, dist.new_group(timeout=limit)]
    return _said(lambda: dist.all_reduce(ones(), group=groups[min(rank, 1)]))


def message_of_another_size(rank: int, group: Any) -> str:
    """The receiver's tensor is smaller than what is sent."""
    if rank > 1:
        return ""
    if rank == 0:
        return _said(lambda: dist.send(ones(8), 1, group))
    return _said(lambda: dist.recv(ones(4), 0, group))


def uneven_parts(rank: int, group: Any) -> str:
    """What a rank sends is not what the other expects."""
    size = dist.get_world_size()
    splits = [1] * size
    x = torch.ones(size, 2, device="tpu")
    if rank == 0:
        splits = [2] + [0] * (size - 2) + [size - 2]
    return _said(lambda: dist.all_to_all_single(torch.empty_like(x), x, [1] * size, splits, group))


def limited(rank: int, group: Any) -> str:
    """A wait of its own limit."""
    if rank == 1:
        return ""
    work = dist.all_reduce(ones(), group=group, async_op=True)
    return _said(lambda: work.wait(timedelta(seconds=0.5)))


def waits_for_a_future(rank: int, group: Any) -> str:
    """One rank never comes, and the others wait as DistributedDataParallel does."""
    if rank == 1:
        return ""
    work = dist.all_reduce(ones(), group=group, async_op=True)
    return _said(lambda: work.get_future().wait())


def trains_alone(rank: int, group: Any) -> str:
    """One rank stops training; autograd's threads wait for it in the others."""
    net = torch.nn.Linear(4, 4).to("tpu")
    model = torch.nn.parallel.DistributedDataParallel(net, process_group=group)
    if rank == 1:
        return ""
    return _said(lambda: model(ones()).sum().backward())


# Lost ranks ------------------------------------------------------------------------------------


def killed(rank: int) -> str:
    """A rank is killed between collectives."""
    x = ones()
    dist.all_reduce(x)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _said(lambda: [dist.all_reduce(x) for _ in range(3)])


def raises(rank: int) -> str:
    """A rank ends with an error of its own."""
    dist.all_reduce(ones())
    if rank == 1:
        raise KeyError("a mistake of the user's")
    return _said(lambda: dist.all_reduce(ones()))


def killed_inside(rank: int, elements: int) -> str:
    """A rank is killed while a collective runs."""
    x, group = ones(elements), dist.new_group(timeout=timedelta(seconds=4))
    dist.all_reduce(x, group=group)
    if rank == 1:
        pid = os.getpid()
        if os.fork() == 0:  # whoever kills it has to be another process
            time.sleep(0.7)
            os.kill(pid, signal.SIGKILL)
            os._exit(0)
    return _said(lambda: _for_seconds(8.0, lambda: dist.all_reduce(x, group=group)))


def stopped(rank: int, elements: int) -> str:
    """A rank stands still for longer than the timeout, wherever it happens to be."""
    x, group = ones(elements), dist.new_group(timeout=timedelta(seconds=4))
    dist.all_reduce(x, group=group)
    if rank == 1:
        pid = os.getpid()
        if os.fork() == 0:
            time.sleep(0.7)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(12.0)
            os.kill(pid, signal.SIGCONT)
            os._exit(0)
    return _said(lambda: _for_seconds(8.0, lambda: dist.all_reduce(x, group=group)))
