"""Joining, repeating and rearranging against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check

OPS = (
    "cat",
    "stack",
    "hstack",
    "block_diag",
    "repeat",
    "tile",
    "repeat_interleave",
    "flip",
    "roll",
    "rot90",
    "tril",
    "triu",
    "diag",
    "diag_embed",
    "trace",
    "kron",
    "nn.functional.channel_shuffle",
    "nn.functional.pixel_shuffle",
    "nn.functional.pixel_unshuffle",
    "cross",
)


@pytest.mark.parametrize("name", OPS)
def test_opinfo(name: str) -> None:
    assert check(name, max_samples=2)


def test_cat_promotes_and_passes_over_empty_tensors() -> None:
    parts = [torch.ones(2, dtype=torch.int32), torch.empty(0), torch.ones(1, dtype=torch.float64)]
    result = torch.cat([p.to("tpu") for p in parts])
    assert result.dtype == torch.float64
    assert result.cpu().equal(torch.cat(parts))


def test_cat_of_views_into_out() -> None:
    x = torch.arange(6.0).reshape(2, 3).to("tpu")
    out = torch.empty(3, 4, device="tpu")
    torch.cat([x.t(), x.t()], dim=1, out=out)
    assert out.cpu().equal(torch.cat([x.cpu().t()] * 2, dim=1))
