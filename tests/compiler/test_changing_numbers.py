"""A learning rate that changes compiles once more, the first time, and never again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"foreach": False}),
    ("RMSprop", {"momentum": 0.9}),
    ("Adadelta", {}),
]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def train(model: torch.nn.Module, make: Any, *, compiled: bool) -> tuple[list[float], list[int]]:
    """Ten steps under a schedule: the losses, and the programs that each step compiled."""
    optimizer = make(model.parameters())
    x = torch.linspace(-1, 1, 8).reshape(2, 4).to(next(model.parameters()).device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = torch.compile(step, backend="tpu") if compiled else step
    losses, compiles = [], []
    for _ in range(10):
        before = torch.tpu._get_cache_stats()["num_compilations"]
        losses.append(call().item())
        compiles.append(torch.tpu._get_cache_stats()["num_compilations"] - before)
        optimizer.param_groups[0]["lr"] *= 0.9
    return losses, compiles


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_a_schedule_compiles_no_program_per_rate(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    make = lambda p: getattr(torch.optim, name)(p, lr=0.01, weight_decay=0.1, **options)  # noqa: E731  # short
    expected, _ = train(copy.deepcopy(model), make, compiled=False)
    losses, compiles = train(model.to("tpu"), make, compiled=True)
    assert compiles[0] > 0
    assert sum(compiles[2:]) == 0, compiles
    torch.testing.assert_close(losses, expected, rtol=5e-5, atol=1e-6)
