"""Arithmetic of sparse tensors in coordinate form: sums, products, matrix products, reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchtpu.eager.sparse import flat, kernel, make, sparse_sizes, sums, with_variants


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo


def _same_shape(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    if a.shape != b.shape:
        raise RuntimeError(
            f"{name}: expected 'self' and 'other' to have same size, but self has size "
            f"{list(a.shape)} while other has size {list(b.shape)} (FYI: op2-sparse {name} does "
            "not currently support broadcasting)"
        )


def _aligned(a: torch.Tensor, b: torch.Tensor, name: str) -> None:
    if a.sparse_dim() != b.sparse_dim() or a.dense_dim() != b.dense_dim():
        raise RuntimeError(
            f"{name}: expected 'self' and 'other' to have same number of sparse and dense "
            f"dimensions, got {a.sparse_dim()}, {a.dense_dim()} and {b.sparse_dim()}, "
            f"{b.dense_dim()}"
        )


@with_variants("aten::add.Tensor")
def add(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """self + alpha * other: sparse and sparse, or dense and sparse."""
    dtype = torch.result_type(self, other)
    if not _is_sparse(self):
        return _add_to_dense(self, other, alpha, dtype)
    if not _is_sparse(other):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    _same_shape("add", self, other)
    _aligned(self, other, "add")
    first, second = self._values().to(dtype), other._values().to(dtype)
    joined = make(
        torch.cat([self._indices(), other._indices()], 1),
        torch.cat([first, second if alpha == 1 else second * alpha]),
        self.shape,
    )
    return joined.coalesce() if self.is_coalesced() and other.is_coalesced() else joined


def _add_to_dense(
    self: torch.Tensor, other: torch.Tensor, alpha: Any, dtype: torch.dtype
) -> torch.Tensor:
    shape = torch.broadcast_shapes(self.shape, other.shape)
    if tuple(other.shape) != tuple(shape):
        raise RuntimeError(
            f"add: expected 'other' to have the shape {list(shape)} of the result (sparse tensors "
            f"are not broadcast), got {list(other.shape)}"
        )
    dense = self.to(dtype).expand(shape)
    values = other._values().to(dtype)
    if not other._nnz() or 0 in other.shape:
        return dense.clone()
    sizes = sparse_sizes(other)
    rows = dense.reshape(math.prod(sizes), *shape[len(sizes) :])
    total = _accumulated(
        rows, flat(other._indices(), sizes), values * alpha if alpha != 1 else values
    )
    return total.reshape(shape)


def _accumulated(rows: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if rows.dtype == torch.bool:
        return rows.long().index_add(0, places, values.long()).bool()
    return rows.index_add(0, places, values)


@with_variants("aten::mul.Tensor")
def mul(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """self * other: the intersection of two sparse tensors, or values times a dense tensor."""
    dtype = torch.result_type(self, other)
    if _is_sparse(self) and _is_sparse(other):
        return _mul_sparse(self, other, dtype)
    sparse, dense = (self, other) if _is_sparse(self) else (other, self)
    if not isinstance(dense, torch.Tensor) or dense.dim() == 0:
        values = sparse._values().to(dtype) * dense
        return make(sparse._indices(), values, sparse.shape, coalesced=sparse.is_coalesced())
    shape = torch.broadcast_shapes(sparse.shape, dense.shape)
    if tuple(sparse.shape) != tuple(shape):
        sparse = torch.ops.aten._sparse_broadcast_to(sparse, shape)
    values = sparse._values().to(dtype) * _gathered(dense.expand(shape), sparse).to(dtype)
    return make(sparse._indices(), values, shape, coalesced=sparse.is_coalesced())


def _mul_sparse(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if a.shape != b.shape:
        shape = torch.broadcast_shapes(a.shape, b.shape)
        a, b = (
            t if t.shape == shape else torch.ops.aten._sparse_broadcast_to(t, shape) for t in (a, b)
        )
    _aligned(a, b, "mul")
    a, b = a.coalesce(), b.coalesce()
    place, found = _lookup(b, a._indices())
    keep = found.nonzero().squeeze(1)
    values = a._values()[keep].to(dtype) * b._values()[place[keep]].to(dtype)
    return make(a._indices()[:, keep], values, a.shape, coalesced=True)


def _gathered(dense: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor at the indices of a sparse one: [nnz, dense dims]."""
    sizes = sparse_sizes(pattern)
    if not pattern._nnz():
        return dense.new_empty((0, *dense.shape[len(sizes) :]))
    rows = dense.reshape(math.prod(sizes), *dense.shape[len(sizes) :])
    return rows.index_select(0, flat(pattern._indices(), sizes))


def _lookup(
    table: torch.Tensor, indices: torch.Tensor, dims: Sequence[int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each column of indices stands in a coalesced tensor, and whether it stands there."""
    sizes = sparse_sizes(table)
    keys, wanted = flat(table._indices(), sizes), flat(indices, sizes)
    if not keys.shape[0]:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(keys, wanted).clamp(max=keys.shape[0] - 1)
    return place, keys[place] == wanted


def values_at(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The values of a sparse tensor at some indices, 0 where it has none."""
    table = table.coalesce()
    place, found = _lookup(table, indices)
    values = table._values()
    if not values.shape[0]:
        return values.new_zeros((indices.shape[1], *values.shape[1:]))
    behind = (1,) * (values.dim() - 1)
    return values[place].masked_fill(~found.reshape(-1, *behind), 0)


@kernel("aten::sparse_mask")
def sparse_mask(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements of self at the indices of mask."""
    if self.shape != mask.shape:
        raise RuntimeError(
            "sparse_mask(): operands have incompatible sizes; self has size "
            f"{list(self.shape)} but mask has size {list(mask.shape)}"
        )
    if not mask._nnz() or not mask.numel():
        return mask.clone().to(self.dtype)
    values = values_at(self, mask._indices()) if _is_sparse(self) else _gathered(self, mask)
    return make(mask._indices().clone(), values, mask.shape, coalesced=mask.is_coalesced())


@kernel("aten::_sparse_mask_projection")
def sparse_mask_projection(
    self: torch.Tensor, mask: torch.Tensor, accumulate_matches: bool = False
) -> torch.Tensor:
    """The part of self whose indices mask has too."""
    del accumulate_matches  # coalesced tensors have one match at most
    self = self.coalesce()
    _, found = _lookup(mask.coalesce(), self._indices())
    keep = found.nonzero().squeeze(1)
    return make(self._indices()[:, keep], self._values()[keep], self.shape, coalesced=True)


@with_variants("aten::addmm")
def addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """beta * self + alpha * (mat1 @ mat2), where mat1 is sparse and the others dense."""
    if not _is_sparse(mat1) or _is_sparse(mat2) or _is_sparse(self):
        raise RuntimeError(
            "addmm: expected a sparse 'mat1' and a dense 'self' and 'mat2', got layouts "
            f"{self.layout}, {mat1.layout} and {mat2.layout}"
        )
    _check_product("addmm", mat1, mat2)
    product = _times_dense(mat1, mat2)
    product = product if alpha == 1 else product * alpha
    shape = (mat1.shape[0], mat2.shape[1])
    return product if beta == 0 else (self if beta == 1 else self * beta).expand(shape) + product


def _check_product(name: str, mat1: torch.Tensor, mat2: torch.Tensor) -> None:
    for which, mat in (("mat1", mat1), ("mat2", mat2)):
        if mat.dim() != 2:
            raise RuntimeError(f"{name}: Expected {which} to be a matrix, got {mat.dim()}-D tensor")
    if _is_sparse(mat1) and (mat1.sparse_dim() != 2 or mat1.dense_dim() != 0):
        raise RuntimeError(
            f"{name}: expected a sparse matrix with 2 sparse and 0 dense dims, got "
            f"{mat1.sparse_dim()} and {mat1.dense_dim()}"
        )
    if mat1.shape[1] != mat2.shape[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({mat1.shape[0]}x{mat1.shape[1]} and "
            f"{mat2.shape[0]}x{mat2.shape[1]})"
        )
    if mat1.dtype != mat2.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {mat1.dtype} != {mat2.dtype}"
        )


def _times_dense(mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """[M, K] sparse @ [K, N] -> [M, N]: rows of mat2, scaled and added up by row of mat1."""
    row, column = mat1._indices().unbind(0)
    if not mat1._nnz():
        return mat2.new_zeros((mat1.shape[0], mat2.shape[1]))
    return sums(mat1._values().unsqueeze(1) * mat2.index_select(0, column), row, mat1.shape[0])


@with_variants("aten::bmm")
def bmm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """[B, M, K] sparse @ [B, K, N] -> [B, M, N]."""
    if not _is_sparse(self) or _is_sparse(mat2):
        raise RuntimeError("bmm_sparse: expected a sparse 'self' and a dense 'mat2'")
    if self.dim() != 3 or mat2.dim() != 3 or self.dense_dim():
        raise RuntimeError(f"bmm_sparse: Tensor must have 3 dims, got {self.dim()}, {mat2.dim()}")
    (b, m, k), n = self.shape, mat2.shape[2]
    if tuple(mat2.shape[:2]) != (b, k):
        raise RuntimeError(
            f"bmm_sparse: expected mat2 of shape [{b}, {k}, N], got {list(mat2.shape)}"
        )
    batch, row, column = self._indices().unbind(0)
    wide = make(torch.stack([batch * m + row, batch * k + column]), self._values(), (b * m, b * k))
    return _times_dense(wide, mat2.reshape(b * k, n)).reshape(b, m, n)


@with_variants("aten::hspmm")
def hspmm(mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """mat1 @ mat2 as a tensor with sparse rows: those that mat1 has."""
    _check_product("hspmm", mat1, mat2)
    mat1 = mat1.coalesce()
    rows, group = torch.unique(mat1._indices()[0], return_inverse=True)
    indices = torch.stack([group, mat1._indices()[1]])
    part = make(indices, mat1._values(), (rows.shape[0], mat1.shape[1]))
    shape = (mat1.shape[0], mat2.shape[1])
    return make(rows.unsqueeze(0), _times_dense(part, mat2), shape, coalesced=True)


@kernel("aten::sspaddmm.out")
def sspaddmm(
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out: torch.Tensor,
) -> torch.Tensor:
    """beta * self + alpha * (mat1 @ mat2) in sparse form: self and mat1 sparse, mat2 dense."""
    _check_product("sspaddmm", mat1, mat2)
    if tuple(self.shape) != (mat1.shape[0], mat2.shape[1]):
        raise RuntimeError(
            f"sspaddmm: expected self of shape [{mat1.shape[0]}, {mat2.shape[1]}], got "
            f"{list(self.shape)}"
        )
    rows = hspmm(mat1, mat2)  # [M, N] with sparse rows
    n, count = mat2.shape[1], rows._nnz()
    row = rows._indices()[0].repeat_interleave(n)
    column = torch.arange(n, device=row.device).repeat(count)
    product = make(torch.stack([row, column]), rows._values().reshape(-1), self.shape)
    return out.copy_(add(self * beta, product, alpha=alpha))


@kernel("aten::_sparse_sparse_matmul")
def matmul(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """[M, K] @ [K, N], all sparse: one product for each pair of equal k, added up."""
    _check_product("sparse_matmul", self, other)
    a, b = self.coalesce(), other.coalesce()
    (row, inner), (b_row, b_column) = a._indices().unbind(0), b._indices().unbind(0)
    owner, place = _pairs(inner, b_row, other.shape[0])
    values = a._values()[owner] * b._values()[place]
    indices = torch.stack([row[owner], b_column[place]])
    return make(indices, values, (self.shape[0], other.shape[1])).coalesce()


def _pairs(left: torch.Tensor, right: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs (i, j) with left[i] == right[j], as two lists; `right` is in order, below size."""
    starts = torch.searchsorted(right, left)
    often = torch.searchsorted(right, left, right=True) - starts
    owner = torch.repeat_interleave(often)
    before = torch.cumsum(often, 0) - often
    inside = torch.arange(owner.shape[0], device=owner.device) - before[owner]
    return owner, starts[owner] + inside


@kernel("aten::index_select")
def index_select(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """The slices of a sparse tensor along a dim."""
    if index.dim() > 1 or index.dtype not in (torch.int64, torch.int32):
        raise IndexError("index_select(): Index is supposed to be a vector of Int or Long")
    dim = wrapped(dim, self.dim())
    index = index.reshape(-1)
    size = list(self.shape)
    size[dim] = index.shape[0]
    if dim >= self.sparse_dim():
        values = self._values().index_select(dim - self.sparse_dim() + 1, index)
        return make(self._indices(), values, size, coalesced=self.is_coalesced())
    index = index.long()
    _check_range(index, self, dim)
    index = torch.where(index < 0, index + self.shape[dim], index)
    there, order = self._indices()[dim].sort()
    owner, place = _pairs(index, there, self.shape[dim])
    column = order[place]
    rows = list(self._indices()[:, column].unbind(0))
    rows[dim] = owner
    return make(torch.stack(rows), self._values()[column], size)


def _check_range(index: torch.Tensor, self: torch.Tensor, dim: int) -> None:
    size = self.shape[dim]
    wrong = index[(index < -size) | (index >= size)]
    if wrong.shape[0]:
        raise IndexError(
            f"index_select(): index contains {int(wrong[0].item())} that is out of range for "
            f"tensor of size {list(self.shape)} at dimension {dim}"
        )


def wrapped(dim: int, rank: int) -> int:
    if not -rank <= dim < max(rank, 1):
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got "
            f"{dim})"
        )
    return dim % rank if rank else 0


@kernel("aten::_sparse_sum_backward")
def sum_backward(grad: torch.Tensor, self: torch.Tensor, dim: Sequence[int]) -> torch.Tensor:
    """The gradient of a sum over dims, at the indices that self has."""
    self = self.coalesce()
    rank, sparse = self.dim(), self.sparse_dim()
    gone = sorted(wrapped(d, rank) for d in dim)
    kept = [d for d in range(sparse) if d not in gone]
    if not _is_sparse(grad):
        values = grad.expand(self._nnz(), *grad.shape) if not kept else grad
    else:
        values = values_at(grad, self._indices()[kept])
    for d in gone:
        if d >= sparse:
            values = values.unsqueeze(d - sparse + 1)
    values = values.expand(self._values().shape).clone()
    return make(self._indices().clone(), values, self.shape, coalesced=True)
