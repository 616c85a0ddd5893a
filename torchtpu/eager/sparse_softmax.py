"""Softmax of sparse tensors along a dim, over the entries that each line has, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from torchtpu.eager.sparse import flat, kernel, make, sums
from torchtpu.eager.sparse_math import values_at, wrapped


def _groups(self: torch.Tensor, dim: int) -> tuple[torch.Tensor, int]:
    """For each column of indices the number of its line along dim, and how many lines there are."""
    others = [d for d in range(self.sparse_dim()) if d != dim]
    sizes = [self.shape[d] for d in others]
    lines, group = torch.unique(flat(self._indices()[others], sizes), return_inverse=True)
    return group, lines.shape[0]


def _log_softmax(self: torch.Tensor, dim: int) -> torch.Tensor:
    values, sparse = self._values(), self.sparse_dim()
    if dim >= sparse:
        return values.log_softmax(dim - sparse + 1)
    group, count = _groups(self, dim)
    low = torch.full(
        (count, *values.shape[1:]), -math.inf, dtype=values.dtype, device=values.device
    )
    most = low.index_reduce(0, group, values, "amax")[group]
    shifted = values - most
    return shifted - sums(shifted.exp(), group, count)[group].log()


def _softmax(log: bool) -> Callable[..., torch.Tensor]:
    def softmax(self: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
        if half_to_float:
            raise RuntimeError("softmax with half to float conversion is not supported here")
        self, dim = self.coalesce(), wrapped(dim, self.dim())
        if not self._nnz():
            return self.clone()
        logs = _log_softmax(self, dim)
        return make(self._indices(), logs if log else logs.exp(), self.shape, coalesced=True)

    return softmax


def _softmax_backward(log: bool) -> Callable[..., torch.Tensor]:
    def backward(
        grad_output: torch.Tensor, output: torch.Tensor, dim: int, self: torch.Tensor
    ) -> torch.Tensor:
        output, dim = output.coalesce(), wrapped(dim, self.dim())
        y, g = output._values(), values_at(grad_output, output._indices())
        weighted, sparse = (g if log else g * y), self.sparse_dim()
        if dim >= sparse:
            total = weighted.sum(dim - sparse + 1, keepdim=True)
        else:
            group, count = _groups(output, dim)
            total = sums(weighted, group, count)[group]
        values = g - y.exp() * total if log else y * (g - total)
        return make(output._indices(), values, output.shape, coalesced=True)

    return backward


kernel("aten::_sparse_softmax")(_softmax(log=False))
kernel("aten::_sparse_log_softmax")(_softmax(log=True))
kernel("aten::_sparse_softmax_backward_data")(_softmax_backward(log=False))
kernel("aten::_sparse_log_softmax_backward_data")(_softmax_backward(log=True))
