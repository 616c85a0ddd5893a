"""Interpolation, grid sampling and sliding blocks against torch's CPU."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.opinfo import check
from torchtpu.lowerings import table

MODES = ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area")


@pytest.mark.parametrize("mode", MODES)
def test_opinfo(mode: str) -> None:
    assert check(f"nn.functional.interpolate.{mode}", max_samples=2)


@pytest.mark.parametrize("name", ["nn.functional.unfold", "_upsample_bilinear2d_aa"])
def test_other_opinfo(name: str) -> None:
    assert check(name, max_samples=2)


@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 2, "mode": "nearest"},
        {"scale_factor": (1.7, 0.6), "mode": "nearest"},
        {"size": (3, 11), "mode": "bilinear", "align_corners": True},
        {"scale_factor": 2.5, "mode": "bicubic"},
        {"scale_factor": 0.4, "mode": "bicubic", "antialias": True},
    ],
    ids=str,
)
def test_gradient(options: dict[str, Any]) -> None:
    x = torch.randn(2, 3, 6, 7)
    results = []
    for device in ("cpu", "tpu"):
        leaf = x.detach().to(device).requires_grad_()
        y = F.interpolate(leaf, **options)
        y.square().sum().backward()
        results.append((y.detach(), leaf.grad))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("mode", "padding_mode"),
    [
        ("bilinear", "zeros"),
        ("nearest", "border"),
        ("bilinear", "reflection"),
        ("bicubic", "reflection"),
    ],
)
def test_grid_sample(mode: str, padding_mode: str) -> None:
    x, grid = torch.randn(1, 2, 4, 5), torch.rand(1, 3, 3, 2) * 3 - 1.5
    results = []
    for device in ("cpu", "tpu"):
        leaves = [t.detach().to(device).requires_grad_() for t in (x, grid)]
        y = F.grid_sample(leaves[0], leaves[1], mode, padding_mode, align_corners=False)
        y.square().sum().backward()
        results.append([y.detach(), *(t.grad for t in leaves)])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_grid_sample_of_volumes(padding_mode: str) -> None:
    x, grid = torch.randn(2, 3, 5, 6, 7), torch.rand(2, 4, 3, 2, 3) * 6 - 3
    grid[0, 0, 0, 0] = -1.0  # the very edge
    results = []
    for device in ("cpu", "tpu"):
        leaves = [t.detach().to(device).requires_grad_() for t in (x, grid)]
        y = F.grid_sample(leaves[0], leaves[1], "bilinear", padding_mode, align_corners=True)
        weight = torch.linspace(-1, 1, y.numel()).view_as(y).to(device)
        results.append((y, *torch.autograd.grad((y * weight).sum(), leaves)))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_taps_of_a_grid_are_one_gather() -> None:
    x, grid = torch.zeros(1, 2, 4, 5), torch.zeros(1, 3, 3, 2)
    row = table()["aten::grid_sampler_2d"].fn
    text = jax.jit(lambda a, b: row(a, b, 2, 0, False)).lower(x.numpy(), grid.numpy()).as_text()
    assert text.count('"stablehlo.gather"') == 1


def test_weights_of_trilinear_interpolation_are_halves() -> None:
    x = torch.randn(2, 3, 4, 3, 5, dtype=torch.bfloat16)
    expected = F.interpolate(x, (5, 4, 6), mode="trilinear")
    assert torch.equal(F.interpolate(x.to("tpu"), (5, 4, 6), mode="trilinear").cpu(), expected)
