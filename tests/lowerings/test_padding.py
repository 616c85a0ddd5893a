"""Pads against torch's CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.opinfo import check


@pytest.mark.parametrize(
    "mode", ["constant", "reflect", "replicate", "replicate_negative", "circular"]
)
def test_opinfo(mode: str) -> None:
    assert check(f"nn.functional.pad.{mode}", max_samples=2)


def test_a_value_that_varies_compiles_once() -> None:
    x = torch.ones(1, 2)
    for value in (2.5, -1.0):
        assert F.pad(x.to("tpu"), (1, -1), value=value).cpu().equal(F.pad(x, (1, -1), value=value))


_REPLICATIONS = [
    ((2, 3, 7), (5, 4)),
    ((2, 3, 4), (-6, 5)),  # crops more than there is
    ((2, 3, 4), (5, -6)),
    ((2, 3, 4, 5), (3, -2, -1, 5)),
    ((0, 3, 4, 5), (3, 2, 4, 1)),
    ((1, 2, 3, 2, 2), (1, 2, 3, 2, 1, 4)),
]


@pytest.mark.parametrize(("shape", "pad"), _REPLICATIONS, ids=str)
def test_replication_and_its_gradient(shape: tuple[int, ...], pad: tuple[int, ...]) -> None:
    found = []
    for device in ("cpu", "tpu"):
        x = torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(device)
        y = F.pad(x.requires_grad_(), pad, mode="replicate")
        grad = torch.sin(torch.arange(float(y.numel()))).reshape(y.shape).to(device)
        found.append([y.detach().cpu(), torch.autograd.grad(y, x, grad)[0].cpu()])
    for actual, expected in zip(*reversed(found), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
