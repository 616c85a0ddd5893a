"""Meta functions of ops for which torch has none, or one that rejects what CPU accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtpu.private import torch as private

_library = torch.library.Library("aten", "IMPL")
CORRECTED: dict[Any, Callable[..., Any]] = {}  # overload -> what run_meta calls in its place


def _meta(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        if not private.has_kernel(f"aten::{name}", "Meta"):
            _library.impl(name, fn, "Meta")
        return fn

    return enter


def _corrects(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        CORRECTED[op] = fn
        return fn

    return enter


@_corrects(torch.ops.aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Hidden and cell state and a workspace of four gates; torch's own wants biases."""
    return torch.empty_like(cx), torch.empty_like(cx), torch.empty_like(input_gates)


@_corrects(torch.ops.aten.baddbmm.dtype_out)
@_corrects(torch.ops.aten.baddbmm.dtype)
def baddbmm_dtype(
    self: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    out_dtype: torch.dtype,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """batch1 @ batch2 in another dtype; torch's own takes the dtype for beta."""
    return batch1.new_empty((*batch1.shape[:2], batch2.shape[2]), dtype=out_dtype)


@_corrects(torch.ops.aten.index_select.default)
def index_select(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Slices along dim; torch's own takes any number of them from a number."""
    if self.dim() == 0 and index.numel() != 1:
        raise RuntimeError(
            f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)"
        )
    return torch.index_select(self, dim, index)


@_corrects(torch.ops.aten.pow_.Scalar)
@_corrects(torch.ops.aten.pow.Tensor_Scalar)
def pow_of_scalar(self: torch.Tensor, exponent: Any) -> torch.Tensor:
    """bool to a power of bool is bool; torch's own takes a bool exponent for an integer."""
    made = torch.pow(self, exponent)
    return made.to(torch.result_type(self, exponent)) if isinstance(exponent, bool) else made


@_corrects(torch.ops.aten.logical_and.default)
@_corrects(torch.ops.aten.logical_or.default)
@_corrects(torch.ops.aten.logical_xor.default)
def logical(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Two conditions at once; torch's own orders strides by those of temporary results."""
    return torch.eq(self, other)


@_corrects(torch.ops.aten._foreach_pow_.Scalar)
@_corrects(torch.ops.aten._foreach_pow.Scalar)
def foreach_pow_of_scalar(self: list[torch.Tensor], exponent: Any) -> list[torch.Tensor]:
    """pow of each tensor."""
    return [pow_of_scalar(t, exponent) for t in self]


@_meta("_aminmax")
def aminmax(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest element."""
    return self.new_empty(()), self.new_empty(())


@_meta("_aminmax.dim")
def aminmax_of_dim(
    self: torch.Tensor, dim: int, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest element along dim."""
    shape = torch.amax(self, dim, keepdim).shape
    return self.new_empty(shape), self.new_empty(shape)


@_meta("_thnn_fused_gru_cell")
def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new hidden state and a workspace of five gates."""
    return torch.empty_like(hx), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


@_meta("_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the gates, the hidden state and the biases."""
    gates = grad_hy.new_empty((grad_hy.shape[0], 3 * grad_hy.shape[1]))
    bias = gates.new_empty(gates.shape[1]) if has_bias else None
    return gates, torch.empty_like(gates), torch.empty_like(grad_hy), bias, bias


@_meta("fractional_max_pool3d_backward")
def fractional_max_pool3d_backward(
    grad_output: torch.Tensor, self: torch.Tensor, *_: Any
) -> torch.Tensor:
    """Like the input of the forward."""
    return torch.empty_like(self)


@_meta("multi_margin_loss_backward")
@_meta("multilabel_margin_loss_backward")
def margin_loss_backward(
    grad_output: torch.Tensor, self: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    """Like the input of the forward."""
    return torch.empty_like(self)


@_corrects(torch.ops.aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(
    self: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, ...]:
    """Of one sample the loss has no dims; torch's own gives it one where it is not reduced."""
    op = torch.ops.aten.multilabel_margin_loss_forward.default
    loss, is_target = op(self, target, reduction)
    return loss if self.dim() > 1 else loss.new_empty(()), is_target


def _saves_nothing_in_evaluation(op: Any) -> Callable[..., Any]:
    def meta(**arguments: Any) -> tuple[torch.Tensor, ...]:
        made: tuple[torch.Tensor, ...] = op(**arguments)
        if arguments.get("training", False) or arguments["running_mean"] is None:
            return made
        none = made[1].new_empty(0)
        return (made[0], none, none, *made[3:])

    return meta


for _op in (
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten._native_batch_norm_legit.default,
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._batch_norm_no_update.default,
):
    CORRECTED[_op] = _saves_nothing_in_evaluation(_op)


@_meta("histogram.bin_ct")
def histogram(self: torch.Tensor, bins: int = 100, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts and edges."""
    return self.new_empty(bins), self.new_empty(bins + 1)


@_meta("histogram.bins_tensor")
def histogram_between(
    self: torch.Tensor, bins: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts and edges."""
    return self.new_empty(bins.numel() - 1), self.new_empty(bins.shape)


@_meta("_histogramdd_bin_edges")
def histogramdd_bin_edges(self: torch.Tensor, bins: list[int], **_: Any) -> list[torch.Tensor]:
    """Edges of each dim."""
    return [self.new_empty(count + 1) for count in bins]


@_meta("_histogramdd_from_bin_cts")
def histogramdd_from_bin_cts(self: torch.Tensor, bins: list[int], **_: Any) -> torch.Tensor:
    """One dim of counts for each column."""
    return self.new_empty(bins)


@_meta("_histogramdd_from_bin_tensors")
def histogramdd_from_bin_tensors(
    self: torch.Tensor, bins: list[torch.Tensor], **_: Any
) -> torch.Tensor:
    """One dim of counts for each column."""
    return self.new_empty([edges.numel() - 1 for edges in bins])


@_meta("geqrf")
def geqrf(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The compact form, column by column, and the factors of the reflections."""
    if self.dim() < 2 or not (self.is_floating_point() or self.is_complex()):
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions of floating point.")
    *batch, rows, columns = self.shape
    tau = self.new_empty((*batch, min(rows, columns)))
    return self.new_empty((*batch, columns, rows)).mT, tau


@_meta("_compute_linear_combination")
def compute_linear_combination(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    coefficients: torch.Tensor,
) -> torch.Tensor:
    """One combination for each row of coefficients."""
    if coefficients.dim() != 2 or coefficients.shape[1] != input.shape[0]:
        raise RuntimeError(
            "[_compute_linear_combination] expected coefficients of shape "
            f"(n, {input.shape[0]}), got {tuple(coefficients.shape)}"
        )
    return input.new_empty((coefficients.shape[0], *input.shape[1:]))


@_corrects(torch.ops.aten.linalg_lstsq.default)
def linalg_lstsq(
    self: torch.Tensor, b: torch.Tensor, rcond: float | None = None, driver: str | None = None
) -> tuple[torch.Tensor, ...]:
    """Solution, residuals, rank and singular values; what a driver lacks is empty."""
    driver = driver or "gelsy"
    vector = b.dim() == 1 or (b.dim() == self.dim() - 1 and b.shape == self.shape[:-1])
    columns = b.unsqueeze(-1) if vector else b
    if self.dtype not in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        raise RuntimeError("This function doesn't handle types other than float and double")
    known = driver in ("gels", "gelsy", "gelsd", "gelss")
    if self.dim() < 2 or self.dtype != b.dtype or not known:
        raise RuntimeError("torch.linalg.lstsq: expected matrices of one dtype and a known driver")
    *batch, rows, size = self.shape
    if columns.dim() < 2 or columns.shape[-2] != rows:
        raise RuntimeError("torch.linalg.lstsq: input and other must have as many rows")
    together = torch.broadcast_shapes(batch, columns.shape[:-2])
    x = self.new_empty((*together, size, columns.shape[-1]))
    none = self.new_empty(0, dtype=self.dtype.to_real())
    over = rows > size and driver != "gelsy"
    rank = self.new_empty(0 if driver == "gels" else batch, dtype=torch.int64)
    return (
        x.squeeze(-1) if vector else x,
        none.new_empty((*together, columns.shape[-1])) if over else none,
        rank,
        none.new_empty((*batch, min(rows, size))) if driver in ("gelsd", "gelss") else none,
    )
