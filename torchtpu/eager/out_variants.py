"""out= and in-place overloads that no functional overload of the same arguments stands behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtpu import views
from torchtpu.eager import meta
from torchtpu.eager.composed import fill
from torchtpu.eager.schema import arguments, overload
from torchtpu.eager.view_ops import kernel
from torchtpu.tensor import view_of

_Compute = Callable[..., torch.Tensor]
_aten = torch.ops.aten


def _enter(name: str, compute: _Compute) -> None:
    """Enter an out= overload: `compute` takes the out= tensor and then the other arguments."""
    op = overload(name)
    known = arguments(op._schema)
    target = next(a.name for a in known if a.is_out)

    def write(*args: Any, **kwargs: Any) -> torch.Tensor:
        bound = {a.name: v for a, v in zip(known, args, strict=False)} | kwargs
        meta._check_variant(op, {n: None if n == "generator" else v for n, v in bound.items()})
        out: torch.Tensor = bound.pop(target)
        result = compute(out, **bound)
        if result.dtype != out.dtype:
            raise RuntimeError(f"Found dtype {_name(out)} but expected {_name(result)}")
        fill([out], (result,))
        return out

    kernel(name)(write)


def _name(tensor: torch.Tensor) -> str:
    """The dtype as torch's own errors spell it: Float, Long."""
    return torch.empty(0, dtype=tensor.dtype).type().split(".")[-1].removesuffix("Tensor")


def _factory(make: Callable[..., torch.Tensor]) -> _Compute:
    def compute(out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = make(**kwargs, dtype=out.dtype, device=out.device)
        return made

    return compute


def _functional(fn: Callable[..., torch.Tensor]) -> _Compute:
    def compute(out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        del out
        return fn(**kwargs)

    return compute


def _range(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """start, start + step, ... up to end, which is included where it is met."""
    length = _aten.range.step(start, end, step, dtype=dtype, device="meta").shape[0]
    below = torch.arange(length, dtype=torch.int64, device=device)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    steps = below if isinstance(step, int) and isinstance(start, int) else below.to(wide)
    made: torch.Tensor = steps * step + start
    return made.to(dtype)


_FACTORIES: dict[str, Callable[..., torch.Tensor]] = {
    "arange.start_out": _aten.arange.start_step,
    "eye.out": _aten.eye.default,
    "eye.m_out": _aten.eye.m,
    "linspace.out": _aten.linspace.default,
    "logspace.out": _aten.logspace.default,
    "range.out": _range,
    "randperm.generator_out": _aten.randperm.generator,
}
for _name_of, _make in _FACTORIES.items():
    _enter(f"aten::{_name_of}", _factory(_make))

for _name_of, _fn in {
    "adaptive_avg_pool2d.out": _aten._adaptive_avg_pool2d.default,
    "adaptive_avg_pool3d.out": _aten._adaptive_avg_pool3d.default,
    "adaptive_avg_pool3d_backward.grad_input": _aten._adaptive_avg_pool3d_backward.default,
    "conj_physical.out": _aten._conj_physical.default,
    "mvlgamma.out": _aten.mvlgamma.default,
}.items():
    _enter(f"aten::{_name_of}", _functional(_fn))


@kernel("aten::nonzero.out")
def nonzero_out(self: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Indices of the elements that are not 0, one row each."""
    if out.dtype != torch.int64:
        raise RuntimeError(
            f"nonzero: Expected out tensor to have scalar type Long but got scalar type{_name(out)}"
        )
    fill([out], (torch.nonzero(self),))
    return out


@kernel("aten::masked_select.out")
def masked_select_out(self: torch.Tensor, mask: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """The elements where mask is true, in order."""
    if mask.dtype == torch.bool and out.dtype != self.dtype:
        raise RuntimeError("masked_select(): self and result must have the same scalar type")
    _check_apart(out, self, mask)
    fill([out], (torch.masked_select(self, mask),))
    return out


def _check_apart(out: torch.Tensor, *inputs: torch.Tensor) -> None:
    """Raise torch's errors of an out= tensor that shares memory, with an input or within itself."""
    view, storage = view_of(out), out.untyped_storage()
    shared = (t for t in inputs if t.device == out.device)
    if any(t.untyped_storage()._cdata == storage._cdata and t.numel() for t in shared):
        what = "some elements of the input tensor and the written-to tensor refer"
    elif views.overlaps(view):
        what = "more than one element of the written-to tensor refers"
    else:
        return
    raise RuntimeError(
        f"unsupported operation: {what} to a single memory location. Please clone() the tensor "
        "before performing the operation."
    )


def _running(functional: Callable[..., Any]) -> Callable[..., None]:
    def helper(self: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
        fill([values, indices], functional(self, dim))

    return helper


kernel("aten::_cummax_helper")(_running(torch.cummax))
kernel("aten::_cummin_helper")(_running(torch.cummin))


def _shifted(shift: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def in_place(self: torch.Tensor, other: Any) -> torch.Tensor:
        return self.copy_(shift(self, other))

    return in_place


for _which in ("Tensor", "Scalar"):
    kernel(f"aten::__ilshift__.{_which}")(_shifted(getattr(_aten.__lshift__, _which)))
    kernel(f"aten::__irshift__.{_which}")(_shifted(getattr(_aten.__rshift__, _which)))


def _accumulated(
    out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  # the schema's name
    coefficients: torch.Tensor,
) -> torch.Tensor:
    """torch's kernels add to what out= holds."""
    made: torch.Tensor = _aten._compute_linear_combination(input, coefficients)
    return made if out.shape != made.shape else out + made


_enter("aten::_compute_linear_combination.out", _accumulated)
