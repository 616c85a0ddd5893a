"""Runs one function on the device and another of the same mathematics on the CPU; no tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

Function = Callable[..., Any]


def compare(
    on_device: Function,
    on_cpu: Function | None,
    *arguments: Any,
    tolerance: float = 1e-4,
    written: bool = False,
) -> None:
    """Compare the results, and with `written` the arguments afterwards; None: the same function."""
    given = [tree_map(_to(d), list(arguments)) for d in ("cpu", "tpu")]
    expected = (on_cpu or on_device)(*given[0])
    actual = on_device(*given[1])
    close((actual, given[1] if written else []), (expected, given[0] if written else []), tolerance)


def compare_gradients(
    on_device: Function, on_cpu: Function | None, *tensors: torch.Tensor, tolerance: float = 1e-4
) -> None:
    """Compare the first result, and the gradients of all tensors."""
    results = []
    for fn, device in ((on_cpu or on_device, "cpu"), (on_device, "tpu")):
        leaves = [_to(device)(t).requires_grad_() for t in tensors]
        out = fn(*leaves)
        seed = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).reshape(out.shape)
        grads = torch.autograd.grad(out, leaves, seed.to(out.dtype).to(device))
        results.append([out.detach(), *grads])
    close(results[1], results[0], tolerance)


def close(actual: Any, expected: Any, tolerance: float) -> None:
    """Assert that all tensors are close; 8-bit floats are compared as float32."""
    pairs = [[t for t in tree_leaves(v) if isinstance(t, torch.Tensor)] for v in (actual, expected)]
    assert len(pairs[0]) == len(pairs[1])
    for a, e in zip(*pairs, strict=True):
        assert a.dtype == e.dtype
        inexact = e.is_floating_point()
        if inexact and e.dtype.itemsize == 1:
            a, e = a.float(), e.float()
        bound = tolerance if inexact else 0
        torch.testing.assert_close(
            a.detach().cpu(),
            e.detach(),
            rtol=bound,
            atol=bound,
            equal_nan=True,
            check_stride=False,
        )


def _to(device: str) -> Function:
    def moved(value: Any) -> Any:
        return value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value

    return moved
