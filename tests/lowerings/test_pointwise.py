"""Elementwise ops: torch's own samples, and the corners where XLA and torch could differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.lowerings.opinfo import check
from torchtpu.lowerings import CallTypes, table
from torchtpu.program import ArrayType

ARITHMETIC = """
    add sub mul rsub div.no_rounding_mode div.floor_rounding div.trunc_rounding floor_divide
    remainder fmod pow float_power maximum minimum fmax fmin atan2 hypot copysign nextafter
    logaddexp clamp clamp_min clamp_max lerp addcmul addcdiv where heaviside isin xlogy
"""
FUNCTIONS = """
    abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid sin cos tan
    asin acos atan sinh cosh tanh asinh acosh atanh sinc floor ceil trunc round
    round.decimals_3 sign sgn frac signbit isnan isinf isfinite nan_to_num frexp logit angle
    polar erf erfc erfinv lgamma digamma polygamma.polygamma_n_1 i0 special.i1 special.entr
    special.erfcx special.zeta special.ndtri special.bessel_j1 special.bessel_y0
    special.modified_bessel_k0 special.airy_ai special.chebyshev_polynomial_t
    special.hermite_polynomial_h igamma
"""
COMPARISONS = """
    eq ne lt le gt ge logical_and logical_or logical_xor logical_not isclose
"""
INTEGERS = """
    add mul div.floor_rounding div.trunc_rounding remainder fmod pow bitwise_and bitwise_xor
    bitwise_not bitwise_left_shift bitwise_right_shift gcd lcm maximum clamp where abs sign
"""


@pytest.mark.parametrize("name", (ARITHMETIC + FUNCTIONS).split())
def test_float32_samples(name: str) -> None:
    assert check(name, torch.float32, max_samples=1)


@pytest.mark.parametrize("name", COMPARISONS.split())
def test_comparison_samples(name: str) -> None:
    assert check(name, torch.float32, max_samples=1, backward=False)


@pytest.mark.parametrize("name", INTEGERS.split())
def test_int64_samples(name: str) -> None:
    assert check(name, torch.int64, max_samples=1, backward=False)


@pytest.mark.parametrize("name", ["add", "mul", "exp", "tanh", "pow", "lerp"])
def test_bfloat16_samples(name: str) -> None:
    assert check(name, torch.bfloat16, max_samples=1)


@pytest.mark.parametrize(
    "name", ["mul", "div.no_rounding_mode", "exp", "abs", "angle", "sgn", "conj"]
)
def test_complex64_samples(name: str) -> None:
    assert check(name, torch.complex64, max_samples=1)


def both(fn: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """Compare fn on both devices, bit for bit apart from NaN payloads."""
    expected, actual = fn(*tensors), fn(*(t.to("tpu") for t in tensors))
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


INF, NAN = float("inf"), float("nan")
ODD = torch.tensor([-INF, -7.0, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.5, 7.0, INF, NAN])


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_of_special_values(mode: str | None) -> None:
    both(lambda a, b: torch.div(a, b, rounding_mode=mode), ODD[:, None], ODD)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_by_one_number_is_rounded_once(mode: str | None) -> None:
    multiples = torch.arange(1.0, 200) * 61
    both(lambda a, b: torch.div(a, b, rounding_mode=mode), multiples, torch.tensor(61.0))
    both(lambda a: torch.div(a, 7, rounding_mode=mode), multiples)
    both(lambda a, b: torch.div(a, b, rounding_mode=mode), ODD, torch.tensor(3.0))
    both(lambda a: torch.div(a, 7, rounding_mode=mode), torch.arange(-50, 50))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_two_byte_quotients_are_rounded_before_they_are_truncated(dtype: torch.dtype) -> None:
    numerators, denominators = torch.arange(1, 400).to(dtype)[:, None], torch.arange(1, 8).to(dtype)
    both(lambda a, b: torch.div(a * 1.75, b, rounding_mode="trunc"), numerators, denominators)
    both(lambda a: torch.div(a, 0.3, rounding_mode="trunc"), numerators)


def test_logaddexp_of_complex_numbers_keeps_the_angle_of_the_larger() -> None:
    a = torch.tensor([1 + 9j, -3 - 7j, complex(-INF, 1), complex(2, 5)])
    actual = torch.logaddexp(a.to("tpu"), a.flip(0).to("tpu"))
    expected = torch.logaddexp(a, a.flip(0))
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin", "remainder", "fmod"])
def test_binary_ops_of_special_values(name: str) -> None:
    both(getattr(torch, name), ODD[:, None], ODD)


@pytest.mark.parametrize(
    "name",
    [
        *["sign", "signbit", "isnan", "isinf", "isposinf", "isfinite", "nan_to_num", "relu"],
        *["frac", "round", "trunc", "floor", "ceil", "abs", "neg"],
    ],
)
def test_unary_ops_of_special_values(name: str) -> None:
    both(getattr(torch, name), ODD)


def test_integer_division_and_remainder_of_negative_numbers() -> None:
    numbers = torch.tensor([-7, -3, -1, 1, 2, 7])
    both(lambda a, b: torch.div(a, b, rounding_mode="floor"), numbers[:, None], numbers)
    both(lambda a, b: torch.div(a, b, rounding_mode="trunc"), numbers[:, None], numbers)
    both(torch.remainder, numbers[:, None], numbers)
    both(torch.fmod, numbers[:, None], numbers)


def test_integers_wrap() -> None:
    both(lambda a: a + 100, torch.tensor([100, -100], dtype=torch.int8))
    both(lambda a: a * a, torch.tensor([2**40, -(2**33)]))
    both(lambda a: a + 300, torch.tensor([1, 2], dtype=torch.uint8))


def test_integer_power_of_negative_exponents() -> None:
    both(torch.pow, torch.tensor([1, -1, 2, -1]), torch.tensor([-3, -3, -2, -2]))


def test_shifts_beyond_the_width() -> None:
    numbers = torch.tensor([-9, 5], dtype=torch.int32)
    amounts = torch.tensor([[0, 3], [33, 40]], dtype=torch.int32)
    both(torch.bitwise_left_shift, numbers, amounts)
    both(torch.bitwise_right_shift, numbers, amounts)


@pytest.mark.parametrize("other", [2, 2.5, True, 1j])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32, torch.bfloat16])
def test_numbers_promote_as_in_torch(dtype: torch.dtype, other: complex) -> None:
    both(lambda a: a * other, torch.tensor([0, 1, 3]).to(dtype))
    both(lambda a: a == other, torch.tensor([0, 1, 3]).to(dtype))


def test_mixed_dtypes_promote() -> None:
    both(torch.add, torch.tensor([1, 2]), torch.tensor(0.5))
    both(
        torch.mul,
        torch.tensor([1.5], dtype=torch.float16),
        torch.tensor([2.0], dtype=torch.bfloat16),
    )
    both(torch.lt, torch.tensor([1, 2]), torch.tensor([1.5, 1.5]))


def test_in_place_and_out_variants() -> None:
    x = torch.arange(6.0, device="tpu").view(2, 3)
    x[:, 1:].mul_(2).add_(1, alpha=3)
    out = torch.empty(2, 3, device="tpu")
    torch.exp(x, out=out)
    expected = torch.arange(6.0).view(2, 3)
    expected[:, 1:].mul_(2).add_(1, alpha=3)
    torch.testing.assert_close(out.cpu(), expected.exp())


def test_lazy_conjugates_are_settled() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    both(lambda a: a.conj() * a, x)
    both(lambda a: torch.real(a * a.conj()) + a.conj().imag, x)
    y = torch.zeros(2, dtype=torch.complex64, device="tpu")
    y.conj().copy_(x.to("tpu"))
    assert torch.equal(y.cpu(), x.conj().resolve_conj())


@pytest.mark.parametrize("low", [True, False], ids=["min", "max"])
@pytest.mark.parametrize("count", [3, 40])
def test_clamp_keeps_the_sign_of_a_zero_at_the_bound(count: int, low: bool) -> None:
    for zero in (0.0, -0.0):
        x = torch.full((count,), -zero)
        bounds = {"min" if low else "max": zero}
        for found in (x.to("tpu").clamp(**bounds), x.to("tpu").clamp_(**bounds)):
            assert torch.equal(found.cpu().signbit(), x.clamp(**bounds).signbit())


def test_a_changed_number_does_not_recompile() -> None:

    x = torch.ones(3, device="tpu")
    _ = x * 0.1 + 0.2
    before = torch.tpu._get_cache_stats()["num_compilations"]
    for i in range(5):
        _ = x * (0.3 + i) + (0.7 + i)
    assert torch.tpu._get_cache_stats()["num_compilations"] == before


def test_power_of_halves_rounds_its_exponent() -> None:
    x = torch.rand(200, dtype=torch.bfloat16) + 0.1
    assert torch.equal(x.to("tpu").pow(2.6).cpu(), x.pow(2.6))


@pytest.mark.parametrize("name", ["add.Tensor", "sub.Tensor", "mul.Tensor", "maximum", "minimum"])
def test_one_step_of_bfloat16_makes_no_float32_and_a_number_does(name: str) -> None:
    x, y = (jnp.ones(4, jnp.bfloat16) for _ in range(2))
    dtype = np.dtype(jnp.bfloat16)
    row, types = table()[f"aten::{name}"], CallTypes(dtype, (ArrayType((4,), dtype),))

    def text(other: Any) -> str:
        return str(jax.jit(lambda a, b: row(types, self=a, other=b)).lower(x, other).as_text())

    assert "f32" not in text(y)
    assert "f32" in text(jnp.float32(0.1))
