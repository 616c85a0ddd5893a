"""Linear algebra that depends on more than shapes: memory layout, and results read by the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtpu.eager.meta import run_meta
from torchtpu.eager.view_ops import kernel

_aten = torch.ops.aten


def _derived(name: str) -> Callable[..., Any]:
    from torchtpu.eager import dispatch

    return dispatch.derived[name]


def _to_factor(A: torch.Tensor) -> torch.Tensor:
    """What torch factors for a determinant, and its gradient's formula takes to be factored."""
    return A.mT if A.is_contiguous() and not A.is_complex() else A


@kernel("aten::_linalg_det")
def linalg_det(A: torch.Tensor) -> Any:
    """The determinant, with the factors."""
    return _derived("aten::_linalg_det")(_to_factor(A))


@kernel("aten::_linalg_slogdet")
def linalg_slogdet(A: torch.Tensor) -> Any:
    """Sign and log |determinant|, with the factors."""
    return _derived("aten::_linalg_slogdet")(_to_factor(A))


@kernel("aten::linalg_eigvals.out")
def linalg_eigvals_out(self: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Eigenvalues; torch composes the functional overload, so that this one derives from none."""
    op, functional = _aten.linalg_eigvals.out, _aten._linalg_eigvals.default
    run_meta(op, functional, {"self": self, "out": out}, mutates=True)
    values = _derived("aten::_linalg_eigvals")(self)
    if out.shape != values.shape:
        _aten._resize_output_.default(out, list(values.shape), values.device)
    return out.copy_(values)


@kernel("aten::cholesky")
def cholesky(self: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """The Cholesky factor; an error where there is none."""
    factor, info = _derived("aten::linalg_cholesky_ex")(self, upper=upper)
    _aten._linalg_check_errors.default(info, "cholesky", is_matrix=self.dim() == 2)
    result: torch.Tensor = factor
    return result


def _checks_errors(name: str, api: str) -> None:
    """Let an op with check_errors=True read its info, the last result, and raise."""

    def checked(self: torch.Tensor, *args: Any, check_errors: bool = False, **kwargs: Any) -> Any:
        results = _derived(name)(self, *args, **kwargs)
        if check_errors:
            matrix = self.dim() == 2
            _aten._linalg_check_errors.default(results[-1], api, is_matrix=matrix)
        return results

    kernel(name)(checked)


for _name, _out, _api in (
    ("linalg_cholesky_ex", "L", "linalg.cholesky_ex"),
    ("linalg_inv_ex", "inverse", "linalg.inv_ex"),
    ("_linalg_solve_ex", "result", "torch.linalg.solve_ex"),
    ("linalg_lu_factor_ex", "out", "torch.linalg.lu_factor_ex"),
    ("linalg_ldl_factor_ex", "out", "torch.linalg.ldl_factor_ex"),
):
    _checks_errors(f"aten::{_name}", _api)
    _checks_errors(f"aten::{_name}.{_out}", _api)


def _lacks_rank(results: Any) -> bool:
    """Whether a driver that counts the rank and gives residuals has found too low a rank."""
    _, residuals, rank, values = results
    if residuals.numel() == 0 or values.numel() == 0:
        return False
    return not bool((rank == values.shape[-1]).all())


@kernel("aten::linalg_lstsq")
def linalg_lstsq(self: torch.Tensor, b: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Solution, residuals (none where a matrix lacks full rank), rank and singular values."""
    results = _derived("aten::linalg_lstsq")(self, b, *args, **kwargs)
    if not _lacks_rank(results):
        return results
    solution, residuals, rank, values = results
    return solution, residuals.new_empty(0), rank, values


@kernel("aten::linalg_lstsq.out")
def linalg_lstsq_out(self: torch.Tensor, b: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same in tensors of the caller's."""
    results = _derived("aten::linalg_lstsq.out")(self, b, *args, **kwargs)
    if _lacks_rank(results):
        results[1].resize_(0)
    return results
