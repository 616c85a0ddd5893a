"""What a call is checked for before it runs: the user's mistakes, and not autograd's calls."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_has_a_gradient_with_running_statistics(
    dtype: torch.dtype, training: bool
) -> None:
    gradients = []
    for device in ("cpu", "tpu"):
        x = torch.arange(12.0, dtype=dtype).reshape(6, 2).to(device).requires_grad_()
        weight = torch.tensor([0.5, 2.0], dtype=dtype, device=device)
        mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
        y = functional.batch_norm(x, mean, variance, weight, training=training)
        gradients.append(torch.autograd.grad(y.square().sum(), x)[0].cpu())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2e-2, atol=5e-2)


def test_writes_of_running_statistics_are_no_new_version() -> None:
    mean, variance = torch.zeros(2, device="tpu"), torch.ones(2, device="tpu")
    functional.batch_norm(torch.ones(3, 2, device="tpu"), mean, variance, training=True)
    assert mean._version == variance._version == 0
