"""Reductions, running results, orders, factories: torch's samples, NaN, ties and empty inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lowerings.opinfo import check

REDUCTIONS = """
    sum nansum mean prod amax amin aminmax max.reduction_with_dim min.reduction_with_dim
    max.reduction_no_dim var std var_mean std_mean.unbiased linalg.vector_norm norm
    logsumexp softmax log_softmax cumsum cumprod cummax cummin sort topk kthvalue median
    nanmedian mode quantile msort masked.softmax trapezoid diff
"""
WITHOUT_GRADIENT = """
    argmax argmin any all count_nonzero searchsorted bucketize histc argsort arange eye
    linspace logspace full tril_indices new_full
"""


@pytest.mark.parametrize("name", REDUCTIONS.split())
def test_float32_samples(name: str) -> None:
    assert check(name, torch.float32, max_samples=1)


@pytest.mark.parametrize("name", WITHOUT_GRADIENT.split())
def test_samples_without_gradient(name: str) -> None:
    assert sum(check(name, d, max_samples=1, backward=False) for d in (torch.float32, torch.int64))


@pytest.mark.parametrize("name", ["sum", "mean", "var", "softmax", "cumsum"])
def test_bfloat16_samples(name: str) -> None:
    assert check(name, torch.bfloat16, max_samples=1)


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "cumsum", "any", "sort"])
def test_int64_and_bool_samples(name: str) -> None:
    assert check(name, torch.int64, max_samples=1, backward=False)
    if name not in ("sort", "cumsum"):  # ties of bools have any order
        assert check(name, torch.bool, max_samples=1, backward=False)


def both(fn: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """Compare values and indices of fn on both devices."""
    expected, actual = fn(*tensors), fn(*(t.to("tpu") for t in tensors))
    if isinstance(expected, torch.Tensor):
        expected, actual = (expected,), (actual,)
    for e, a in zip(expected, actual, strict=True):
        assert a.dtype == e.dtype
        torch.testing.assert_close(a.cpu(), e, equal_nan=True)


NAN = float("nan")
TIES = torch.tensor([[1.0, 3.0, 3.0, 2.0], [NAN, 0.0, NAN, 5.0], [2.0, 2.0, 2.0, 2.0]])


@pytest.mark.parametrize("name", ["max", "min", "cummax", "cummin", "median", "nanmedian"])
def test_values_and_indices_of_ties_and_nans(name: str) -> None:
    both(lambda x: tuple(getattr(torch, name)(x, 1)), TIES)


@pytest.mark.parametrize(
    "name", ["argmax", "argmin", "amax", "amin", "sum", "prod", "logsumexp", "std"]
)
def test_nan_spreads(name: str) -> None:
    both(lambda x: getattr(torch, name)(x, 1), TIES)


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_and_puts_nan_last(descending: bool) -> None:
    both(lambda x: tuple(torch.sort(x, dim=1, stable=True, descending=descending)), TIES)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8])
def test_topk(largest: bool, dtype: torch.dtype) -> None:
    values = torch.tensor([[5, 0, 9, 3], [7, 1, 2, 250]]).to(dtype)
    both(lambda x: tuple(torch.topk(x, 3, largest=largest)), values)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "any", "all", "logsumexp"])
def test_empty_input(name: str) -> None:
    both(lambda x: getattr(torch, name)(x, dim=0), torch.zeros(0, 3))


def test_extrema_of_nothing_raise_as_on_cpu() -> None:
    for device in ("cpu", "tpu"):
        with pytest.raises((RuntimeError, IndexError)):
            torch.zeros(0, 3, device=device).amax(0)


def test_zero_dim_input() -> None:
    x = torch.tensor(3.5)
    for name in ("sum", "argmax", "softmax", "cumsum", "logsumexp"):
        both(lambda v, n=name: getattr(torch, n)(v, 0), x)
    both(lambda v: tuple(torch.sort(v)), x)
    both(lambda v: tuple(torch.max(v, 0)), x)


def test_half_precision_sums_are_wide() -> None:
    x = torch.full((4096,), 1.0, dtype=torch.bfloat16, device="tpu")
    assert x.sum().item() == 4096
    assert x.mean().item() == 1


def test_integer_sums_are_int64() -> None:
    both(torch.sum, torch.full((10,), 2**31 - 1, dtype=torch.int32))


@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_variance_correction(correction: float) -> None:
    both(lambda x: torch.var(x, 1, correction=correction), torch.arange(12.0).view(3, 4) ** 2)


def test_a_range_compiles_once_for_each_length() -> None:

    torch.arange(0, 8, device="tpu")
    before = torch.tpu._get_cache_stats()["num_compilations"]
    for start in range(1, 6):
        r = torch.arange(start, start + 8, device="tpu")
    assert torch.tpu._get_cache_stats()["num_compilations"] == before
    assert r.tolist() == list(range(5, 13))


def test_ranges_of_every_dtype() -> None:
    for args in ((5,), (2, 9), (1.0, 2.0, 0.25), (10, 0, -3)):
        for dtype in (None, torch.float32, torch.bfloat16):
            expected = torch.arange(*args, dtype=dtype)
            actual = torch.arange(*args, dtype=dtype, device="tpu")
            assert actual.dtype == expected.dtype
            torch.testing.assert_close(actual.cpu(), expected)
