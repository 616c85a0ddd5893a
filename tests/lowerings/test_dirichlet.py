"""The derivative of Dirichlet samples against torch's CPU, in each region of its formulas."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.pairs import compare


def _points(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    alpha, beta = (torch.exp(torch.randn(3000, dtype=torch.float64) * 2) for _ in range(2))
    x = torch.distributions.Beta(alpha, beta).sample().clamp(1e-4, 1 - 1e-3)
    return [t.to(dtype) for t in (x, alpha, alpha + beta)]


def test_every_region_is_cpus() -> None:
    points = _points(torch.float64)
    x, alpha, total = points
    beta, boundary = total - alpha, total * x * (1 - x)
    low, high = (x <= 0.5) & (boundary < 2.5), (x >= 0.5) & (boundary < 0.75)
    large = (alpha > 6) & (beta > 6) & ~low & ~high
    assert all(r.sum() > 50 for r in (low, high, large, ~(low | high | large)))
    compare(torch._dirichlet_grad, None, *points, tolerance=1e-8)


def test_float32() -> None:
    compare(torch._dirichlet_grad, None, *_points(torch.float32), tolerance=2e-3)


def test_rsample_has_a_gradient() -> None:
    concentration = torch.full((5,), 0.7, device="tpu").requires_grad_()
    torch.distributions.Dirichlet(concentration).rsample().square().sum().backward()
    assert concentration.grad is not None
    assert concentration.grad.isfinite().all()
    with pytest.raises(RuntimeError, match="must match"):
        torch._dirichlet_grad(torch.rand(3, device="tpu"), *torch.rand(2, 4, device="tpu"))
