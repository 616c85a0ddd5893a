"""The text of an error of wrong arguments, as torch's CPU device says it.

torch's meta functions find the same mistakes, some in other words, and a few not at all.
"""

from __future__ import annotations

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


def as_cpu(error: Exception, op: Any, arguments: Mapping[str, Any]) -> Exception:
    """Return the CPU's error for a call that failed on meta tensors; `error` where it has none."""
    return _error_of(op, arguments) or error


def check(op: Any, arguments: Mapping[str, Any]) -> None:
    """Raise the CPU's error for mistakes that torch's meta functions let pass."""
    tensors = [v for v in arguments.values() if isinstance(v, torch.Tensor)]
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
    if mixed or outside or no_indices or any(t.numel() == 0 for t in tensors):
        error = _error_of(op, arguments)
        if error is not None:
            raise error


def _error_of(op: Any, arguments: Mapping[str, Any]) -> Exception | None:
    tensors = [t for v in arguments.values() for t in (v if isinstance(v, list) else [v])]
    if sum(t.numel() for t in tensors if isinstance(t, torch.Tensor)) > _MAX_ELEMENTS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            op(**{n: _on_cpu(v) for n, v in arguments.items()})
    except NotImplementedError:
        return None
    except Exception as error:
        unsupported = "not implemented for" in str(error)  # a dtype that only the CPU lacks
        return None if unsupported else error.with_traceback(None)
    return None


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype, device="cpu")
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, list):
        return [_on_cpu(v) for v in value]
    return value
