"""Activation functions with their gradients, by torch's own samples."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.lowerings.opinfo import check

NAMES = """
    relu relu6 gelu silu mish elu selu celu leaky_relu hardtanh hardswish hardsigmoid
    softplus threshold prelu glu logsigmoid tanhshrink softshrink hardshrink softsign
    softmin
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_float32_samples(name: str) -> None:
    assert check(f"nn.functional.{name}", torch.float32, max_samples=2)


@pytest.mark.parametrize("name", ["gelu", "silu", "softplus", "elu", "logsigmoid"])
def test_bfloat16_samples(name: str) -> None:
    assert check(f"nn.functional.{name}", torch.bfloat16, max_samples=1)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_far_from_zero(approximate: str) -> None:
    x = torch.tensor([-40.0, -6.0, 0.0, 6.0, 40.0])
    results = []
    for device in ("cpu", "tpu"):
        y = x.clone().to(device).requires_grad_()
        functional.gelu(y, approximate=approximate).sum().backward()
        assert y.grad is not None
        results.append(y.grad.cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_softplus_and_logsigmoid_do_not_overflow() -> None:
    x = torch.tensor([-200.0, -20.0, 0.0, 20.0, 200.0])
    for fn in (functional.softplus, functional.logsigmoid, functional.mish):
        torch.testing.assert_close(fn(x.to("tpu")).cpu(), fn(x))


def test_nan_passes_through() -> None:
    x = torch.tensor([float("nan"), 1.0])
    for fn in (functional.relu, functional.hardtanh, functional.softshrink, functional.hardshrink):
        torch.testing.assert_close(fn(x.to("tpu")).cpu(), fn(x), equal_nan=True)
