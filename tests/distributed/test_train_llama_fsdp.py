"""The example of a Llama sharded by FSDP2: on each backend, and from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples import train_llama_fsdp
from tests.distributed import world

pytestmark = pytest.mark.timeout(480)  # several processes that all import and compile

STEPS = 12


def _train(rank: int, device: str, until: int, kept: Path | None) -> list[float]:
    del rank
    return train_llama_fsdp.train(device, STEPS, until=until, kept=kept, save_every=5)


def _in_bfloat16(rank: int) -> list[float]:
    del rank
    return train_llama_fsdp.train("tpu", STEPS, compute=torch.bfloat16)


def test_another_number_of_processes_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    on_gloo = world.results(_train, 2, "cpu", STEPS, None, backend="gloo")[0]
    first = world.results(_train, 2, "tpu", 10, tmp_path)[0]
    assert first == pytest.approx(on_gloo[:10], rel=1e-4)
    (tmp_path / "15").mkdir()  # of a run that was ended while it saved
    rest = world.results(_train, 1, "tpu", STEPS, tmp_path)[0]
    assert rest == pytest.approx(on_gloo[10:], rel=1e-4)


def test_bfloat16_learns_like_float32() -> None:
    losses, same = world.results(_in_bfloat16, 2)
    assert losses == same
    assert losses[-1] < losses[0] - 1.0
