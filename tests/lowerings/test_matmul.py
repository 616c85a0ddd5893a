"""Matrix products against torch's CPU: OpInfo samples, integers, half dtypes, NaN and beta = 0."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check

OPS = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "addmv",
    "mv",
    "dot",
    "vdot",
    "addr",
    "matmul",
    "nn.functional.linear",
    "inner",
    "einsum",
    "nn.functional.bilinear",
)


@pytest.mark.parametrize("name", OPS)
def test_opinfo(name: str) -> None:
    assert check(name, max_samples=2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["mm", "addmm", "matmul", "addr"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    assert check(name, dtype, max_samples=2, backward=dtype.is_floating_point)


def test_half_dtypes_accumulate_in_float32() -> None:
    ones = torch.ones(1, 4097, dtype=torch.bfloat16)
    product = ones.to("tpu") @ ones.to("tpu").T
    assert product.item() == 4096  # 4097 rounded once; a bfloat16 sum would stick at 256


def test_beta_zero_ignores_nan() -> None:
    bias = torch.full((2, 2), torch.nan, device="tpu")
    eye = torch.eye(2, device="tpu")
    assert torch.addmm(bias, eye, eye, beta=0).cpu().equal(torch.eye(2))


def test_integers_wrap() -> None:
    a = torch.full((1, 2), 100, dtype=torch.int8)
    assert (a.to("tpu") @ a.to("tpu").T).cpu().equal(a @ a.T)


def test_int_mm_accumulates_in_int32() -> None:
    a = torch.full((32, 32), 100, dtype=torch.int8)
    result = torch._int_mm(a.to("tpu"), a.to("tpu"))
    assert result.dtype == torch.int32
    assert result.cpu().equal(a.int() @ a.int())


def test_an_error_is_torchs() -> None:
    with pytest.raises(RuntimeError, match=r"same reduction dim|size mismatch|be multiplied"):
        torch.ones(2, 3, device="tpu") @ torch.ones(2, 3, device="tpu")


def test_out_and_in_place() -> None:
    a = torch.arange(4.0).reshape(2, 2)
    out = torch.empty(0, device="tpu")
    torch.mm(a.to("tpu"), a.to("tpu"), out=out)
    assert out.cpu().equal(a @ a)
    total = a.to("tpu")
    assert total.addmm_(total, total, alpha=2).cpu().equal(a + 2 * a @ a)


def test_addr_of_halves_rounds_at_each_step() -> None:
    x, left, right = (torch.randn(n, dtype=torch.bfloat16) for n in (10, 50, 10))
    expected = torch.addr(x, left, right, beta=0.6, alpha=0.2)
    actual = torch.addr(*(t.to("tpu") for t in (x, left, right)), beta=0.6, alpha=0.2)
    assert torch.equal(actual.cpu(), expected)
