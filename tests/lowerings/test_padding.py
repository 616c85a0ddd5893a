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
