"""The example of training in several processes: by DDP, and sharded, from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import train_ddp
from tests.distributed import world

pytestmark = pytest.mark.timeout(480)  # several processes that all import and compile

STEPS = 12


def _train(rank: int, device: str, steps: int, kept: Path | None) -> list[float]:
    del rank
    return train_ddp.train(device, steps, shard=kept is not None, kept=kept)


def test_another_number_of_processes_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    (losses, _) = world.results(_train, 2, "tpu", STEPS, None)
    on_gloo = world.results(_train, 2, "cpu", STEPS, None, backend="gloo")[0]
    assert losses == pytest.approx(on_gloo, rel=1e-4)
    sharded = world.results(_train, 2, "tpu", 10, tmp_path)[0]
    assert sharded == pytest.approx(losses[:10], rel=1e-4)
    rest = world.results(_train, 1, "tpu", STEPS, tmp_path)[0]
    assert rest == pytest.approx(losses[10:], rel=1e-4)
