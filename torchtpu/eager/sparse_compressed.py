"""Sparse tensors in compressed form: rows (CSR, BSR) or columns (CSC, BSC), of elements or blocks.

What torch's own kernels compose of ops is borrowed; the rest goes by way of coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchtpu.eager import sparse, view_ops
from torchtpu.eager.sparse import (
    UNARY,
    borrow,
    elementwise,
    flat,
    kernel,
    sums,
    unflat,
    with_variants,
    write,
)
from torchtpu.private import torch as private

KERNELS: dict[str, Callable[..., Any]] = {}  # of dispatch key SparseCsrPrivateUse1
_BY_ROW = frozenset({torch.sparse_csr, torch.sparse_bsr})
_OF_BLOCKS = frozenset({torch.sparse_bsr, torch.sparse_bsc})
_COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc}) | _OF_BLOCKS
_COMPOSED = """
    _nnz crow_indices col_indices ccol_indices row_indices values sparse_dim dense_dim clone copy_
    empty_like empty.memory_format resize_ resize_as_sparse_ select.int select_copy.int mul.Scalar
    mul_.Scalar zero_ sum angle angle.out fill_.Scalar normal_ is_pinned _to_dense _to_sparse
    _to_sparse.sparse_dim _conj_physical conj_physical_
"""


def is_compressed(value: Any) -> bool:
    """Tell whether a value is a tensor in one of the compressed layouts."""
    return isinstance(value, torch.Tensor) and value.layout in _COMPRESSED


def parts(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the starts of the rows (or columns), and the columns (or rows) of the entries."""
    if self.layout in _BY_ROW:
        return self.crow_indices(), self.col_indices()
    return self.ccol_indices(), self.row_indices()


def make(
    starts: torch.Tensor,
    plain: torch.Tensor,
    values: torch.Tensor,
    size: Sequence[int],
    layout: torch.layout,
) -> torch.Tensor:
    """Return the compressed tensor of these parts."""
    made: torch.Tensor = torch.ops.aten._sparse_compressed_tensor_unsafe.default(
        starts, plain, values, list(size), dtype=values.dtype, layout=layout, device=values.device
    )
    return made


def places(self: torch.Tensor) -> torch.Tensor:
    """The coordinates of the entries in the order in which they are stored: [dims, nnz]."""
    starts, plain = parts(self)
    rows_first = self.layout in _BY_ROW
    convert = torch.ops.aten._convert_indices_from_csr_to_coo
    found: torch.Tensor = convert(starts, plain, transpose=not rows_first)
    return found


def _coordinates(value: Any) -> Any:
    """The same tensor in coordinate form; anything else as it is."""
    return value.to_sparse() if is_compressed(value) else value


def _like(coordinates: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """A result in the layout (and with the blocks) of an argument."""
    block = tuple(model.values().shape[-2:]) if model.layout in _OF_BLOCKS else None
    return coordinates.to_sparse(layout=model.layout, blocksize=block)


@view_ops.kernel("aten::_validate_compressed_sparse_indices")
def validate_indices(
    is_crow: bool,
    compressed_idx: torch.Tensor,
    plain_idx: torch.Tensor,
    cdim: int,
    dim: int,
    nnz: int,
) -> None:
    """Raise the CPU's error where the indices are not those of a compressed tensor."""
    torch.ops.aten._validate_compressed_sparse_indices.default(
        is_crow, compressed_idx.cpu(), plain_idx.cpu(), cdim, dim, nnz
    )


def _entries(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, columns and values of the entries of a matrix, blocks taken apart."""
    if self.layout in _OF_BLOCKS:
        coordinates = self.to_sparse()
        row, column = coordinates._indices().unbind(0)
        return row, column, coordinates._values()
    row, column = places(self).unbind(0)
    return row, column, self.values()


def _to_elements(layout: torch.layout) -> Callable[..., torch.Tensor]:
    def to_elements(self: torch.Tensor, dense_dim: int | None = None) -> torch.Tensor:
        _no_dense_dim(dense_dim)
        if self.layout == layout:
            return self.clone()
        if self.dim() - self.dense_dim() != 2:
            return self.to_dense().to_sparse(layout=layout, dense_dim=self.dense_dim())
        row, column, values = _entries(self)
        lines, plain = (row, column) if layout in _BY_ROW else (column, row)
        count, width = self.shape[:2] if layout in _BY_ROW else self.shape[:2][::-1]
        order = (lines * max(width, 1) + plain).argsort()
        starts = torch.ops.aten._convert_indices_from_coo_to_csr(lines, count)
        return make(starts, plain[order], values[order], self.shape, layout)

    return to_elements


def _no_dense_dim(dense_dim: int | None) -> None:
    if dense_dim is not None:
        raise RuntimeError(
            "conversion from a compressed layout: dense_dim argument is not supported, got "
            f"{dense_dim}"
        )


def _to_blocks(layout: torch.layout) -> Callable[..., torch.Tensor]:
    def to_blocks(
        self: torch.Tensor, blocksize: Sequence[int], dense_dim: int | None = None
    ) -> torch.Tensor:
        _no_dense_dim(dense_dim)
        if self.layout == layout and tuple(self.values().shape[-2:]) == tuple(blocksize):
            return self.clone()
        _check_blocks(self, blocksize)
        return _blocked(self, layout, blocksize)

    return to_blocks


def _check_blocks(self: torch.Tensor, blocksize: Sequence[int]) -> None:
    height, width = blocksize
    if self.dim() != 2:
        raise RuntimeError(f"expected a matrix without batch or dense dims, got {self.dim()} dims")
    if height <= 0 or width <= 0 or self.shape[0] % height or self.shape[1] % width:
        raise RuntimeError(
            f"tensor sparse size ({self.shape[0]}, {self.shape[1]}) must be divisible by given "
            f"blocksize ({height}, {width})"
        )


def _blocked(self: torch.Tensor, layout: torch.layout, blocksize: Sequence[int]) -> torch.Tensor:
    """Gather the entries of a matrix in the blocks that hold any."""
    (row, column, values), (height, width) = _entries(self), blocksize
    grid = [self.shape[0] // height, self.shape[1] // width]
    block = [row // height, column // width]
    if layout not in _BY_ROW:
        grid, block = grid[::-1], block[::-1]
    found, group = torch.unique(flat(torch.stack(block), grid), return_inverse=True)
    inside = (group * height + row % height) * width + column % width
    count = found.shape[0]
    blocks = sums(values, inside, count * height * width).reshape(count, height, width)
    lines, plain = unflat(found, grid).unbind(0)
    starts = torch.ops.aten._convert_indices_from_coo_to_csr(lines, grid[0])
    return make(starts, plain, blocks, self.shape, layout)


kernel("aten::_to_sparse_csr", KERNELS)(_to_elements(torch.sparse_csr))
kernel("aten::_to_sparse_csc", KERNELS)(_to_elements(torch.sparse_csc))
kernel("aten::_to_sparse_bsr", KERNELS)(_to_blocks(torch.sparse_bsr))
kernel("aten::_to_sparse_bsc", KERNELS)(_to_blocks(torch.sparse_bsc))


@with_variants("aten::add.Tensor", KERNELS)
def add(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """self + alpha * other; dense where one of them is."""
    if is_compressed(self) and not is_compressed(other):
        return torch.add(other if alpha == 1 else other * alpha, _coordinates(self))
    total = torch.add(_coordinates(self), _coordinates(other), alpha=alpha)
    return _like(total, self) if is_compressed(self) else total


@with_variants("aten::mul.Tensor", KERNELS)
def mul(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """self * other, in the layout of the first that is compressed."""
    sparse, factor = (self, other) if is_compressed(self) else (other, self)
    if not isinstance(factor, torch.Tensor) or factor.dim() == 0:
        dtype = torch.result_type(self, other)
        values = sparse.values().to(dtype) * factor
        return make(*parts(sparse), values, sparse.shape, sparse.layout)
    return _like(torch.mul(_coordinates(sparse), _coordinates(factor)), sparse)


def _product(mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """mat1 @ mat2: in coordinate form where both are sparse, else dense."""
    left, right = _coordinates(mat1), _coordinates(mat2)
    if left.layout == torch.strided:
        return torch.mm(right.t(), left.t()).t()
    if right.layout == torch.strided:
        return torch.mm(left, right)
    product: torch.Tensor = torch.ops.aten._sparse_sparse_matmul.default(left, right)
    return product


@with_variants("aten::mm", KERNELS)
def mm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """self @ mat2: CSR where both are sparse, else dense."""
    product = _product(self, mat2)
    return product if product.layout == torch.strided else product.to_sparse_csr()


@with_variants("aten::addmm", KERNELS)
def addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """beta * self + alpha * (mat1 @ mat2) with any of them compressed."""
    product, base = _product(mat1, mat2) * alpha, _coordinates(self)
    total = product if beta == 0 else torch.add(base if beta == 1 else base * beta, product)
    return _like(total, self) if is_compressed(self) and total.layout != torch.strided else total


@kernel("aten::addmv.out", KERNELS)
def addmv_out(
    self: torch.Tensor,
    mat: torch.Tensor,
    vec: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out: torch.Tensor,
) -> torch.Tensor:
    """beta * self + alpha * (mat @ vec), dense."""
    product = _product(mat, vec.unsqueeze(1)).squeeze(1) * alpha
    total = product if beta == 0 else self * beta + product
    return write(out, total, "out")


def _reduced(
    self: torch.Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None, reduce: str
) -> torch.Tensor:
    """Reduce the stored entries of a CSR matrix along dims; the result is CSR of their lines."""
    if self.layout != torch.sparse_csr:
        raise RuntimeError(
            "Currently the only compressed sparse format supported for sum.dim_IntList is CSR, but "
            f"got layout {self.layout}"
        )
    if not keepdim:
        raise RuntimeError("reduction operations on CSR tensors with keepdim=False is unsupported")
    if self.dim() != 2:
        raise RuntimeError(f"reduction of CSR tensors: expected 2 dims, got {self.dim()}")
    gone = {d % 2 for d in dim} or {0, 1}
    values = self.values() if dtype is None else self.values().to(dtype)
    if dtype is None and not (values.is_floating_point() or values.is_complex()):
        values = values.long()
    lines = [torch.zeros_like(p) if d in gone else p for d, p in enumerate(places(self).unbind(0))]
    size = [1 if d in gone else n for d, n in enumerate(self.shape)]
    found, group = torch.unique(flat(torch.stack(lines), size), return_inverse=True)
    total = values.new_full((found.shape[0],), 0 if reduce == "sum" else 1)
    total = (
        total.index_add(0, group, values)
        if reduce == "sum"
        else total.index_reduce(0, group, values, reduce)
    )
    row, column = unflat(found, size).unbind(0)
    starts = torch.ops.aten._convert_indices_from_coo_to_csr(row, size[0])
    return make(starts, column, total, size, torch.sparse_csr)


@kernel("aten::_sparse_csr_sum.dim_dtype", KERNELS)
def csr_sum(
    self: torch.Tensor,
    dim: Sequence[int],
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Sums of the entries of a CSR matrix."""
    return _reduced(self, dim, keepdim, dtype, "sum")


@kernel("aten::_sparse_csr_prod.dim_dtype", KERNELS)
def csr_prod(
    self: torch.Tensor,
    dim: Sequence[int],
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Products of the entries of a CSR matrix."""
    return _reduced(self, dim, keepdim, dtype, "prod")


@kernel("aten::sum.dim_IntList", KERNELS)
def sum_dims(
    self: torch.Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Sums of the entries of a CSR matrix along dims that stay with size 1."""
    return _reduced(self, dim or (), keepdim, dtype, "sum")


@kernel("aten::sparse_mask", KERNELS)
def sparse_mask(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements of self at the places of a compressed mask."""
    if self.shape != mask.shape:
        raise RuntimeError(
            "sparse_mask(): operands have incompatible sizes; self has size "
            f"{list(self.shape)} but mask has size {list(mask.shape)}"
        )
    if is_compressed(self):
        return mul(
            self, make(*parts(mask), torch.ones_like(mask.values()), mask.shape, mask.layout)
        )
    if mask.layout in _OF_BLOCKS or mask.dim() != 2:
        return _like(self.sparse_mask(mask.to_sparse()), mask)
    where = sparse.make(places(mask), mask.values(), mask.shape)
    values = torch.ops.aten.sparse_mask.default(self, where)._values()
    starts, plain = parts(mask)
    return make(starts.clone(), plain.clone(), values, mask.shape, mask.layout)


@with_variants("aten::sparse_sampled_addmm", KERNELS)
def sampled_addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """alpha * (mat1 @ mat2) at the places of self, + beta * self."""
    if self.layout != torch.sparse_csr:
        raise RuntimeError(
            f"sampled_addmm: Expected self to have layout torch.sparse_csr, got {self.layout}"
        )
    if tuple(self.shape) != (*mat1.shape[:-1], mat2.shape[-1]):
        raise RuntimeError(
            f"sampled_addmm: expected self of shape {[*mat1.shape[:-1], mat2.shape[-1]]}, got "
            f"{list(self.shape)}"
        )
    *batch, row, column = places(self).unbind(0)
    left, right = mat1[(*batch, row)], mat2.mT[(*batch, column)]
    values = (left * right).sum(-1).reshape(self.values().shape) * alpha
    values = values if beta == 0 else values + self.values() * beta
    return make(*parts(self), values, self.shape, self.layout)


@kernel("aten::triangular_solve.X", KERNELS)
def triangular_solve(
    self: torch.Tensor,
    A: torch.Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
    *,
    X: torch.Tensor,
    M: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The X with A @ X = self, where A is a compressed triangular matrix."""
    dense = A.to_dense()
    matrix, upper = (dense.mT, not upper) if transpose else (dense, upper)
    solved = torch.linalg.solve_triangular(matrix, self, upper=upper, unitriangular=unitriangular)
    return write(X, solved, "out"), M


borrow(KERNELS, private.DispatchKey.SparseCsrCPU, _COMPOSED + elementwise(UNARY))
