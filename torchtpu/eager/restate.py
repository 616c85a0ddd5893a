"""The text of an error of wrong arguments, as torch's CPU device says it.

torch's meta functions find the same mistakes, some in other words, and a few not at all.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch

_MAX_ELEMENTS = (
    1 << 20
)  # of all arguments together: the op runs on the host if it is right after all
_SAME_DTYPE = frozenset(
    {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear"}
)
_UNCHECKED = frozenset(  # torch has no meta function of its own, or one that checks too little
    {"aminmax", "bucketize", "complex", "masked_scatter", "histogram", "_histogramdd_bin_edges"}
    | {"_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors"}
)
_PROBED_ELEMENTS = 1 << 12
_OF_DTYPES = re.compile("[Bb]ool|[Cc]omplex|integral|(bitwise|shift|gcd|lcm).*not implemented for")
_INTEGERS_ONLY = frozenset(
    f"bitwise_{n}" for n in ("and", "or", "xor", "not", "left_shift", "right_shift")
) | {"gcd", "lcm"}


def as_cpu(error: Exception, op: Any, arguments: Mapping[str, Any]) -> Exception:
    """Return the CPU's error for a call that failed on meta tensors; `error` where it has none."""
    return _error_of(op, arguments) or error


def of_variant(problem: str, op: Any, arguments: Mapping[str, Any]) -> Exception | None:
    """Return the CPU's error for what an in-place or out= call does to what it writes to.

    None where the CPU has no objection, as some of its kernels do nothing without elements.
    """
    if _elements(arguments) > _MAX_ELEMENTS:
        return RuntimeError(problem)
    return _raised(op, arguments)


def check(op: Any, arguments: Mapping[str, Any]) -> None:
    """Raise the CPU's error for mistakes that torch's meta functions let pass."""
    tensors = [v for v in arguments.values() if isinstance(v, torch.Tensor)]
    _check_dtypes(op, arguments)
    check_unchecked(op, arguments)
    dim = arguments.get("dim")
    mixed = (
        op._schema.name.removeprefix("aten::") in _SAME_DTYPE
        and len({t.dtype for t in tensors}) > 1
    )
    outside = (
        tensors
        and type(dim) is int
        and not -(tensors[0].dim() or 1) <= dim < (tensors[0].dim() or 1)
    )
    indices = arguments.get("indices")
    no_indices = isinstance(indices, list) and any(
        t.is_floating_point() or t.is_complex() for t in indices if isinstance(t, torch.Tensor)
    )
    unfit = isinstance(indices, list) and not no_indices and _values_unfit(arguments)
    if mixed or outside or no_indices or unfit or any(t.numel() == 0 for t in tensors):
        error = _error_of(op, arguments)
        if error is not None:
            raise error


def check_unchecked(op: Any, arguments: Mapping[str, Any]) -> None:
    """Raise the CPU's error of an op for which nothing else finds the mistakes."""
    if op._schema.name.removeprefix("aten::") in _UNCHECKED:
        error = _error_of(op, arguments)
        if error is not None:
            raise error


def _values_unfit(arguments: Mapping[str, Any]) -> bool:
    """Tell whether index_put's values do not broadcast to what the indices name."""
    into, values = arguments.get("self"), arguments.get("values")
    if not isinstance(into, torch.Tensor) or not isinstance(values, torch.Tensor):
        return False
    try:
        values.expand(torch.ops.aten.index.Tensor(into, arguments["indices"]).shape)
    except (RuntimeError, IndexError):
        return True
    return False


def _check_dtypes(op: Any, arguments: Mapping[str, Any]) -> None:
    """Raise what the CPU says of complex numbers and truth values, which few ops are made for."""
    values = [t for v in arguments.values() for t in (v if isinstance(v, list) else [v])]
    tensors = [t for t in values if isinstance(t, torch.Tensor)]
    special = any(t.dtype == torch.bool or t.is_complex() for t in tensors)
    if op._schema.name.removeprefix("aten::") in _INTEGERS_ONLY:
        special = any(t.is_floating_point() or t.is_complex() for t in tensors)
        special = special or any(isinstance(v, (float, complex)) for v in values)
    elif op._schema.name in ("aten::sub", "aten::rsub"):
        special = special or any(v is True or v is False for v in values)
    if special and _elements(arguments) <= _PROBED_ELEMENTS:
        error = _raised(op, arguments)
        if error is not None and _OF_DTYPES.search(str(error)):
            raise error


def _raised(op: Any, arguments: Mapping[str, Any]) -> Exception | None:
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            op(**{n: _on_cpu(v) for n, v in arguments.items()})
    except Exception as error:
        return error.with_traceback(None)
    return None


def _error_of(op: Any, arguments: Mapping[str, Any]) -> Exception | None:
    if _elements(arguments) > _MAX_ELEMENTS:
        return None
    error = _raised(op, arguments)
    if error is None or isinstance(error, NotImplementedError):
        return None
    return None if "not implemented for" in str(error) else error  # which only the CPU lacks


def _elements(arguments: Mapping[str, Any]) -> int:
    values = [t for v in arguments.values() for t in (v if isinstance(v, list) else [v])]
    return sum(t.numel() for t in values if isinstance(t, torch.Tensor))


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype, device="cpu")
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, list):
        return [_on_cpu(v) for v in value]
    return value
