"""Runs an op's samples from torch's own OpInfo database on two devices and compares the results."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.lowerings import open_results

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of optional packages that are absent
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_utils import set_rng_seed

TOLERANCES = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 2e-2,
}
Call = Callable[..., Any]
Context = Callable[[], AbstractContextManager[Any]]

# Their bits differ between devices; tests/ops/test_distributions.py looks at them.
_RANDOM = re.compile(
    r"(bernoulli|cauchy|exponential|geometric|log_normal|normal|multinomial|rand|uniform|empty"
    r"|new_empty|svd_lowrank|pca_lowrank|nn\.functional\.(\w*dropout\d?d?|rrelu"
    r"|fractional_max_pool|multi_head_attention_forward)"
    r"|torch\.ops\.aten\._(efficient|flash)_attention_forward)"
)
_ATTENTION = "nn.functional.scaled_dot_product_attention"
_BY_NAME: dict[str, list[Any]] = {}
for _op in op_db:
    _BY_NAME.setdefault(_op.full_name, []).append(_op)


def _directly(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


class Rejected(Exception):
    """A sample that torch's own CPU device does not run."""


def names() -> list[str]:
    """Return the names of all OpInfos ("add", "nn.functional.gelu", "div.floor_rounding")."""
    return list(_BY_NAME)


def is_random(name: str) -> bool:
    """Tell whether an OpInfo's results are drawn, or are memory that nobody wrote."""
    return _RANDOM.match(name) is not None


def check(
    name: str,
    dtype: torch.dtype = torch.float32,
    max_samples: int | None = 2,
    backward: bool = True,
    tolerance: float | None = None,
) -> int:
    """Compare an OpInfo on both devices.

    Samples that torch's own CPU device rejects are passed over. Returns how many were compared;
    raises AssertionError at the first difference, ValueError for an unknown name.
    """
    compared = 0
    for trial in trials(name, dtype, max_samples, backward=backward, tolerance=tolerance):
        try:
            trial()
        except Rejected:
            continue
        compared += 1
    return compared


def trials(
    name: str,
    dtype: torch.dtype,
    max_samples: int | None = None,
    *,
    backward: bool = True,
    tolerance: float | None = None,
    actual: Call = _directly,
    expected: Call = _directly,
    on: tuple[str, str] = ("tpu", "cpu"),
    within: tuple[Context, Context] = (nullcontext, nullcontext),
) -> Iterator[Callable[[], None]]:
    """Yield a function per sample that compares it on two devices, called in two ways.

    within: what each runs in, backward too. It raises Rejected where the second refuses,
    AssertionError where they differ.
    """
    for number, (op, sample, grad) in enumerate(_sampled(name, dtype, max_samples, backward)):
        run = partial(_run, sample=sample, grad=grad)
        is_rounded_once = name in open_results.ROUNDED_ONCE and on[0] != on[1]
        reference = partial(_run_exactly, sample=sample, grad=grad) if is_rounded_once else run
        is_written = not name.startswith(("empty", "new_empty"))
        chosen = _compare if on[0] == on[1] and is_written else _comparison(name, sample)
        yield partial(
            _trial,
            partial(_inside, within[0], partial(run, partial(actual, op), device=on[0])),
            partial(_inside, within[1], partial(reference, partial(expected, op), device=on[1])),
            compare=partial(
                chosen,
                dtype=dtype,
                where=f"{name} {dtype} sample {number}",
                tolerance=tolerance,
            ),
        )


def runs(
    name: str, dtype: torch.dtype, max_samples: int, device: str = "cpu"
) -> Iterator[Callable[[], Any]]:
    """Yield a function per sample that runs it on a device, backward too."""
    for op, sample, grad in _sampled(name, dtype, max_samples, backward=True):
        yield partial(_run, op, sample=sample, device=device, grad=grad)


def _comparison(name: str, sample: Any) -> Callable[..., None]:
    """What a sample's results on two devices have to have in common."""
    if is_random(name) or (name == _ATTENTION and sample.kwargs.get("dropout_p", 0) > 0):
        return _compare_types
    if name in open_results.ORDERS and not sample.kwargs.get("stable"):
        dim = open_results.dim_of(name, sample.args, sample.kwargs)
        return partial(_compare, ties=open_results.Ties(sample.input.detach(), dim))
    return partial(
        _compare,
        phases=name in open_results.EIGENVECTORS,
        statistics=name in open_results.EXACT_STATISTICS,
    )


def _sampled(
    name: str, dtype: torch.dtype, max_samples: int | None, backward: bool
) -> Iterator[tuple[Any, Any, bool]]:
    """Yield OpInfo, sample, and whether it has gradients."""
    if name not in _BY_NAME:
        close = [n for n in _BY_NAME if name in n][:8]
        raise ValueError(f"[opinfo] expected an OpInfo's name, got {name!r}; did you mean {close}?")
    for op in _BY_NAME[name]:
        if dtype in op.dtypes:
            inexact = dtype.is_floating_point or dtype.is_complex
            grad = inexact and backward and op.supports_autograd and dtype in op.backward_dtypes
            for sample in _samples(op, dtype, grad, max_samples):
                yield op, sample, grad


def _inside(context: Context, run: Callable[[], Any]) -> Any:
    with context():
        return run()


def _trial(actual: Call, expected: Call, *, compare: Call) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = expected()
        except (RuntimeError, IndexError, ValueError, AssertionError) as error:
            raise Rejected(str(error)) from error
        warnings.filterwarnings("error", message=r"\[torchtpu\]")  # torch's own stay ignored
        got = actual()
    compare(got, wanted)


def _samples(op: Any, dtype: torch.dtype, grad: bool, count: int | None) -> Iterator[Any]:
    """Yield samples, each from the same random state: whoever takes them draws in between."""
    # op.sample_inputs does the same behind a walk over the stack for each call.
    samples = islice(op.sample_inputs_func(op, "cpu", dtype, grad), count)
    while True:
        set_rng_seed()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sample = next(samples, None)
        if sample is None:
            return
        yield sample


def _run(
    call: Call, *, sample: Any, device: str, grad: bool, seeds: torch.dtype | None = None
) -> tuple[list[Any], list[Any]]:
    arguments = (sample.input, sample.args, sample.kwargs)
    inputs, args, kwargs = tree_map(lambda v: _copied(v, device, grad), arguments)
    torch.manual_seed(1)
    made = call(inputs, *args, **kwargs)
    results = _tensors(made)
    if not grad:
        return results, []
    wanted = [t for t in _tensors((inputs, args, kwargs)) if t.requires_grad]
    outputs = _tensors(sample.output_process_fn_grad(made))
    differentiable = [r for r in outputs if r.requires_grad]
    if not wanted or not differentiable:
        return results, []
    given = [_seed(r, seeds or r.dtype) for r in differentiable]
    grads = torch.autograd.grad(differentiable, wanted, given, allow_unused=True)
    return results, [g for g in grads if g is not None]


def _run_exactly(
    call: Call, *, sample: Any, device: str, grad: bool
) -> tuple[list[Any], list[Any]]:
    """Run a sample of two-byte floats in float32, and round what comes out."""
    wide = copy(sample)
    parts = (sample.input, sample.args, sample.kwargs)
    wide.input, wide.args, wide.kwargs = tree_map(open_results.widened, parts)
    half = next((t.dtype for t in _tensors(parts) if t.dtype in open_results.HALF), None)
    found = _run(call, sample=wide, device=device, grad=grad, seeds=half)
    if half is None:
        return found
    results, grads = ([t.to(half) for t in tensors] for tensors in found)
    return results, grads


def _copied(value: Any, device: str, grad: bool) -> Any:
    if isinstance(value, torch.device):
        return torch.device(device)
    if not isinstance(value, torch.Tensor):
        return value
    clone = value.detach().clone(memory_format=torch.preserve_format)
    clone = clone if device == "cpu" else clone.to(device)
    return clone.requires_grad_(grad and value.requires_grad)


def _seed(result: torch.Tensor, rounded_to: torch.dtype) -> torch.Tensor:
    """A gradient that differs from element to element, the same on every device."""
    count = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape)
    return torch.cos(count).to(rounded_to).to(result.dtype).to(result.device)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [v for v in tree_leaves(values) if isinstance(v, torch.Tensor)]


def _pairs(actual: Any, expected: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    for kind, got, wanted in zip(("output", "gradient"), actual, expected, strict=True):
        assert len(got) == len(wanted), f"{where}: {len(got)} {kind}s, expected {len(wanted)}"
        for index, (a, e) in enumerate(zip(got, wanted, strict=True)):
            yield f"{where} {kind} {index}", a, e


def _compare(
    actual: Any,
    expected: Any,
    dtype: torch.dtype,
    where: str,
    tolerance: float | None,
    *,
    ties: open_results.Ties | None = None,
    phases: bool = False,
    statistics: bool = False,
) -> None:
    tolerance = TOLERANCES.get(dtype, 1e-4) if tolerance is None else tolerance
    for what, a, e in _pairs(actual, expected, where):
        inexact = e.is_floating_point() or e.is_complex()
        got, wanted = _plain(a), _plain(e)
        if ties is not None:
            settled = {"gradient 0": ties.gradient, "output 1": ties.indices}
            settled |= {"output 0": ties.indices} if len(expected[0]) == 1 else {}
            got = next((f(got, wanted) for n, f in settled.items() if what.endswith(n)), got)
        elif phases and what.endswith("output 1"):
            wanted = open_results.turned(wanted, got)
        elif statistics and got.dtype == torch.float32:
            got = open_results.narrowed(got, wanted)
        torch.testing.assert_close(
            got,
            wanted,
            rtol=tolerance if inexact else 0,
            atol=tolerance if inexact else 0,
            equal_nan=True,
            check_stride=False,
            msg=partial("{}: {}".format, what),
        )


def _compare_types(
    actual: Any, expected: Any, dtype: torch.dtype, where: str, tolerance: float | None
) -> None:
    for what, a, e in _pairs(actual, expected, where):
        assert (a.shape, a.dtype, a.layout) == (e.shape, e.dtype, e.layout), what
        _plain(a)


def _plain(value: torch.Tensor) -> torch.Tensor:
    """The values on the host, dense."""
    value = value.detach()
    value = value if value.layout == torch.strided else value.to_dense()
    return value.cpu().resolve_conj().resolve_neg()
