"""Runs an op's samples from torch's own OpInfo database on cpu and tpu and compares the results."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of optional packages that are absent
    from torch.testing._internal.common_methods_invocations import op_db

TOLERANCES = {
    torch.float64: 1e-7,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 2e-2,
}
_BY_NAME: dict[str, list[Any]] = {}
for _op in op_db:
    _BY_NAME.setdefault(_op.full_name, []).append(_op)


def check(
    name: str,
    dtype: torch.dtype = torch.float32,
    max_samples: int = 3,
    backward: bool = True,
    tolerance: float | None = None,
) -> int:
    """Compare an OpInfo ("add", "nn.functional.gelu", "div.floor_rounding") on both devices.

    Samples that torch's own CPU device rejects are passed over. Returns how many were compared;
    raises AssertionError at the first difference, ValueError for an unknown name.
    """
    if name not in _BY_NAME:
        close = [n for n in _BY_NAME if name in n][:8]
        raise ValueError(f"[opinfo] expected an OpInfo's name, got {name!r}; did you mean {close}?")
    compared = 0
    for op in _BY_NAME[name]:
        if dtype not in op.dtypes:
            continue
        grad = backward and op.supports_autograd and dtype in op.backward_dtypes
        for number, sample in enumerate(_samples(op, dtype, grad, max_samples)):
            arguments = (sample.input, sample.args, sample.kwargs)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    expected = _run(op, arguments, "cpu", grad)
            except (RuntimeError, NotImplementedError, IndexError, ValueError):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own; the device's stay errors
                warnings.filterwarnings("error", message=r"\[torchtpu\]")
                actual = _run(op, arguments, "tpu", grad)
            _compare(actual, expected, dtype, f"{name} {dtype} sample {number}", tolerance)
            compared += 1
    return compared


def _samples(op: Any, dtype: torch.dtype, grad: bool, count: int) -> Iterator[Any]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from islice(op.sample_inputs("cpu", dtype, requires_grad=grad), count)


def _run(op: Any, arguments: Any, device: str, grad: bool) -> tuple[list[Any], list[Any]]:
    inputs, args, kwargs = tree_map(lambda v: _copied(v, device, grad), arguments)
    results = _tensors(op(inputs, *args, **kwargs))
    if not grad:
        return results, []
    wanted = [t for t in _tensors((inputs, args, kwargs)) if t.requires_grad]
    differentiable = [r for r in results if r.requires_grad]
    if not wanted or not differentiable:
        return results, []
    seeds = [_seed(r) for r in differentiable]
    grads = torch.autograd.grad(differentiable, wanted, seeds, allow_unused=True)
    return results, [g for g in grads if g is not None]


def _copied(value: Any, device: str, grad: bool) -> Any:
    if isinstance(value, torch.device):
        return torch.device(device)
    if not isinstance(value, torch.Tensor):
        return value
    copy = value.detach().clone(memory_format=torch.preserve_format)
    copy = copy if device == "cpu" else copy.to(device)
    return copy.requires_grad_(grad and value.requires_grad)


def _seed(result: torch.Tensor) -> torch.Tensor:
    """A gradient that differs from element to element, the same on every device."""
    count = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape)
    return torch.cos(count).to(result.dtype).to(result.device)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [v for v in tree_leaves(values) if isinstance(v, torch.Tensor)]


def _compare(
    actual: Any, expected: Any, dtype: torch.dtype, where: str, tolerance: float | None
) -> None:
    tolerance = TOLERANCES.get(dtype, 1e-4) if tolerance is None else tolerance
    for kind, got, wanted in zip(("output", "gradient"), actual, expected, strict=True):
        assert len(got) == len(wanted), f"{where}: {len(got)} {kind}s, expected {len(wanted)}"
        for index, (a, e) in enumerate(zip(got, wanted, strict=True)):
            inexact = e.is_floating_point() or e.is_complex()
            torch.testing.assert_close(
                a.detach().cpu().resolve_conj().resolve_neg(),
                e.detach().resolve_conj().resolve_neg(),
                rtol=tolerance if inexact else 0,
                atol=tolerance if inexact else 0,
                equal_nan=True,
                check_stride=False,
                msg=partial("{}, {} {}: {}".format, where, kind, index),
            )
