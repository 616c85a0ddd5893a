"""Sums of sparse tensors over a group: what all have is gathered, and added up where it is."""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.distributed.work import Work
from torchtpu.errors import TpuError


def all_reduce(group: Any, tensors: list[torch.Tensor], reduce: str) -> Work:
    """Sum each COO tensor over the members of a group, in place; done when this returns."""
    if reduce != "sum":
        raise TpuError(f"[all_reduce] expected the reduction sum for a sparse tensor, got {reduce}")
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(_summed(group, tensor.coalesce()))
    work = Work(lambda *_: None, tensors)
    work.finish([])
    return work


def _summed(group: Any, mine: torch.Tensor) -> torch.Tensor:
    counts = [torch.empty(1, dtype=torch.int64, device="cpu") for _ in range(group.size())]
    count = torch.tensor([mine._nnz()], device="cpu")
    group.allgather([counts], [count]).wait()
    # [sparse dims, entries] -> [entries, sparse dims], as the entries of members differ in number
    indices = _joined(group, counts, mine.indices().t().contiguous()).t()
    values = _joined(group, counts, mine.values())
    return torch.sparse_coo_tensor(indices, values, mine.shape).coalesce()


def _joined(group: Any, counts: list[torch.Tensor], mine: torch.Tensor) -> torch.Tensor:
    parts = [mine.new_empty((int(count), *mine.shape[1:])) for count in counts]
    group.allgather([parts], [mine]).wait()
    return torch.cat(parts)
