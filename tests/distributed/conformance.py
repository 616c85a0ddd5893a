"""Every collective on the device beside torch's gloo on CPU tensors; runs in each rank."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8)
MOVED = (*FLOATS, *INTEGERS, torch.int16, torch.bool, torch.complex64, torch.complex128)
SHAPES = ((), (1,), (7,), (4, 3), (0,), (2, 3, 5))
Case = tuple[str, Callable[[Any, str], Any]]  # its name; what it computes on a group and device


def mismatches(rank: int, stride: int, members: list[int]) -> list[str]:
    """Run every stride-th case in a group on the device and on the CPU; return what differs."""
    group, host = (dist.new_group(members, backend=b) for b in ("tpu_dist", "gloo"))
    if rank not in members:
        return []
    wrong = []
    for name, run in islice(cases(members.index(rank), len(members)), None, None, stride):
        try:
            expected: Any = run(host, "cpu")
        except (RuntimeError, ValueError):
            continue  # gloo has no such thing; tests of their own look at what it lacks
        try:
            torch.testing.assert_close(
                [t.cpu() for t in run(group, "tpu")],
                expected,
                rtol=1e-2 if "16" in name else 1e-6,
                atol=0,
                equal_nan=True,
            )
        except Exception as error:
            wrong.append(f"{name}: {''.join(traceback.format_exception(error))[-1500:]}")
    return wrong


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return small numbers that differ from rank to rank."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(0, 4, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(made.double(), made.double() + seed).to(dtype)
    return made.to(dtype)


def cases(rank: int, size: int) -> Iterator[Case]:
    """Yield the cases as a rank of a group runs them."""
    ops = dist.ReduceOp
    for dtype in (*FLOATS, *INTEGERS):
        reductions = ["SUM", "MAX", "MIN", "PRODUCT"]
        reductions += ["BAND", "BOR", "BXOR"] if dtype in INTEGERS else []
        for reduction in reductions:
            op = getattr(ops, reduction)
            for shape in SHAPES if dtype == torch.float32 else ((4, 3),):
                yield _reducing(rank, size, dtype, op, shape, f"{reduction} {dtype} {shape}")
    yield _reducing(rank, size, torch.complex64, ops.SUM, (3,), "SUM complex64")
    for dtype in MOVED:
        for shape in SHAPES if dtype == torch.float32 else ((4, 3),):
            yield _moving(rank, size, dtype, shape, f"{dtype} {shape}")
    yield "uneven", lambda group, device: _uneven(rank, size, group, device)
    yield "views", lambda group, device: _views(rank, group, device)


def _reducing(
    rank: int, size: int, dtype: torch.dtype, op: Any, shape: tuple[int, ...], what: str
) -> Case:
    def run(group: Any, device: str) -> list[torch.Tensor]:
        made = []
        given = values(shape, dtype, rank).to(device)
        whole = given.clone()
        dist.all_reduce(whole, op, group=group)
        made.append(whole)
        for root in range(size):
            one = given.clone()
            dist.reduce(one, op=op, group=group, group_dst=root)
            made += [one] if root == rank else []
        if op == dist.ReduceOp.SUM and shape:
            parts = [values(shape, dtype, rank + n).to(device) for n in range(size)]
            kept = torch.empty_like(parts[0])
            dist.reduce_scatter(kept, parts, op, group=group)
            single = torch.empty_like(kept)
            dist.reduce_scatter_tensor(single, torch.cat(parts), op, group=group)
            made += [kept, single]
        return made

    return f"reductions {what}", run


def _moving(rank: int, size: int, dtype: torch.dtype, shape: tuple[int, ...], what: str) -> Case:
    def run(group: Any, device: str) -> list[torch.Tensor]:
        made = []
        given = values(shape, dtype, rank).to(device)
        for root in range(size):
            sent = given.clone()
            dist.broadcast(sent, group=group, group_src=root)
            parts = [torch.empty_like(given) for _ in range(size)] if rank == root else None
            dist.gather(given, parts, group=group, group_dst=root)
            all_parts = [values(shape, dtype, 10 * root + n).to(device) for n in range(size)]
            mine = torch.empty_like(given)
            dist.scatter(mine, all_parts if rank == root else None, group=group, group_src=root)
            made += [sent, mine, *(parts or [])]
        gathered = [torch.empty_like(given) for _ in range(size)]
        dist.all_gather(gathered, given, group=group)
        made += gathered
        if shape:
            joined = torch.empty((size * shape[0], *shape[1:]), dtype=dtype, device=device)
            dist.all_gather_into_tensor(joined, given, group=group)
            sent = torch.cat([values(shape, dtype, size * rank + n) for n in range(size)])
            came = torch.empty_like(joined)
            dist.all_to_all_single(came, sent.to(device), group=group)
            made += [joined, came]
        if size > 1:
            made += _messages(rank, size, given, group)
        return made

    return f"moves {what}", run


def _messages(rank: int, size: int, given: torch.Tensor, group: Any) -> list[torch.Tensor]:
    """Send around a ring, blocking and not, and from anybody to member 0."""
    after, before = (rank + 1) % size, (rank - 1) % size
    first, second = torch.empty_like(given), torch.empty_like(given)
    works: list[Any] = [
        dist.isend(given, group=group, group_dst=after, tag=3),
        dist.irecv(first, group=group, group_src=before, tag=3),
    ]
    for work in works:
        work.wait()
    ops = [
        dist.P2POp(dist.isend, given + given, group=group, group_peer=before),
        dist.P2POp(dist.irecv, second, group=group, group_peer=after),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [first, second]


def _uneven(rank: int, size: int, group: Any, device: str) -> list[torch.Tensor]:
    """Give parts whose sizes differ from rank to rank."""
    sizes = [[(a + 2 * b) % 4 for b in range(size)] for a in range(size)]
    sent = torch.arange(sum(sizes[rank]) * 2, dtype=torch.float32).view(-1, 2) + 100 * rank
    column = [row[rank] for row in sizes]
    came = torch.empty(sum(column), 2, device=device)
    dist.all_to_all_single(came, sent.to(device), column, sizes[rank], group=group)
    return [came]


def _views(rank: int, group: Any, device: str) -> list[torch.Tensor]:
    """Write through views: a slice, and a contiguous part of a larger tensor."""
    whole = torch.arange(12, dtype=torch.float32).view(3, 4).to(device) + rank
    part = whole[1]
    dist.all_reduce(part, group=group)
    flat = torch.zeros(8, device=device)
    flat[2:6] += rank + 1
    dist.broadcast(flat[2:6], group=group, group_src=0)
    return [whole, flat]
