"""Compact QR factors and products with their reflections against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check


@pytest.mark.parametrize("name", ["geqrf", "ormqr", "linalg.householder_product", "linalg.qr"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_opinfo(name: str, dtype: torch.dtype) -> None:
    assert check(name, dtype, max_samples=3)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_ormqr_is_a_product_with_all_of_q(left: bool, transpose: bool) -> None:
    torch.manual_seed(0)
    a = torch.randn(5, 3, dtype=torch.complex128)
    c = torch.randn((5, 2) if left else (2, 5), dtype=a.dtype)
    expected = torch.ormqr(*torch.geqrf(a), c, left=left, transpose=transpose)
    h, tau = torch.geqrf(a.to("tpu"))
    product = torch.ormqr(h, tau, c.to("tpu"), left=left, transpose=transpose)
    torch.testing.assert_close(product.cpu(), expected)


def test_geqrf_into_outputs() -> None:
    a = torch.arange(6.0).reshape(3, 2)
    out = torch.empty(0, device="tpu"), torch.empty(0, device="tpu")
    torch.geqrf(a.to("tpu"), out=out)
    for got, wanted in zip(out, torch.geqrf(a), strict=True):
        torch.testing.assert_close(got.cpu(), wanted)


def test_empty_matrices() -> None:
    h, tau = torch.geqrf(torch.empty(2, 0, 3, device="tpu"))
    assert (h.shape, tau.shape) == ((2, 0, 3), (2, 0))


def test_a_vector_is_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="must have at least 2 dimensions"):
        torch.geqrf(torch.ones(3, device="tpu"))
