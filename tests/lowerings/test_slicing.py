"""Slice writes and gradients of views against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check

OPS = (
    "select_scatter",
    "slice_scatter",
    "diagonal_scatter",
    "select",
    "slice",
    "diagonal",
    "unfold",
    "narrow",
    "split",
    "unbind",
    "as_strided_scatter",
)


@pytest.mark.parametrize("name", OPS)
def test_opinfo(name: str) -> None:
    assert check(name, max_samples=2)


def test_gradient_of_a_strided_slice() -> None:
    grads = []
    for device in ("cpu", "tpu"):
        x = torch.arange(20.0).reshape(4, 5).to(device).requires_grad_()
        (x[1:4:2, -4:-1] ** 2).sum().backward()
        assert x.grad is not None
        grads.append(x.grad.cpu())
    assert grads[1].equal(grads[0])
