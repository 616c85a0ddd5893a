"""Debug and strict mode: the same results bit for bit, and errors at the op's line in debug."""

from __future__ import annotations

import pytest
import torch

from torchtpu import config
from torchtpu.eager.modes import EagerMode
from torchtpu.errors import TpuError

DEBUG = EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING


def _losses(mode: EagerMode) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    model = model.to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(5, 6).to("tpu")
    losses = []
    with torch.tpu.set_eager_mode(mode):
        for _ in range(4):
            loss = torch.nn.functional.dropout(model(x), 0.2).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def test_debug_and_strict_agree_bit_for_bit() -> None:
    assert _losses(DEBUG) == _losses(EagerMode.DEFER_NEVER)


@pytest.mark.usefixtures("strict")
def test_the_mode_is_read_assigned_and_restored() -> None:
    assert torch.tpu.eager_mode == EagerMode.DEFER_NEVER
    with torch.tpu.set_eager_mode(DEBUG):
        assert torch.tpu.eager_mode == DEBUG
    with pytest.raises(TpuError, match="expected an EagerMode, got 'strict'"):
        torch.tpu.eager_mode = "strict"
    torch.tpu.eager_mode = DEBUG
    assert torch.tpu.eager_mode == DEBUG
    torch.tpu.eager_mode = EagerMode.DEFER_NEVER


def test_debug_mode_finds_the_first_nan() -> None:
    x = torch.tensor([1.0, -1.0], device="tpu")
    with torch.tpu.set_eager_mode(DEBUG), config.override(check_nan=True):
        x.add(1)
        with pytest.raises(
            TpuError, match=r"\[aten::log\] output 0 of shape \(2,\) has NaN"
        ) as raised:
            x.log()
    assert "test_modes.py" in "".join(raised.value.__notes__)
