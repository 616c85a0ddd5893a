"""Training steps of the model families and examples in the TPU compiler, alone and over 2x2.

One of them a day on one chip; TORCHTPU_TESTALL=1 takes all, on both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtpu
from examples.sentence_transformer import SentenceEncoder
from examples.voice_activity import CONTEXT, FRAME, VoiceActivity
from tests.daily import ALL, PART
from tests.models import CASES

_BATCH = 8  # libtpu's stack overflows on a ResNet-18 step of 4 images for v6e
Made = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor], Tensor]]  # model, inputs, loss


def _family(name: str) -> Made:
    case = CASES[name]
    inputs, targets = (torch.cat([t] * _BATCH)[:_BATCH].to("tpu") for t in case.batch())
    return case.build(), (inputs,), lambda made: case.loss(made, targets)


def _sentences() -> Made:
    tokens = torch.ones(_BATCH, 16, dtype=torch.int64, device="tpu")
    model = SentenceEncoder(vocabulary=512, depth=2)
    return model, (tokens, tokens > 0), Tensor.sum


def _voice() -> Made:
    return VoiceActivity(), (torch.ones(_BATCH, CONTEXT + FRAME, device="tpu"),), Tensor.sum


MODELS: dict[str, Callable[[], Made]] = {
    **{name: lambda name=name: _family(name) for name in CASES},  # type: ignore[misc]  # early
    "sentence_transformer": _sentences,
    "voice_activity": _voice,
}
_NAMES = sorted(MODELS)
_QUICK = [n for n in _NAMES if n != "resnet18"]  # which takes libtpu minutes
_TODAY = _NAMES if ALL else [_QUICK[PART % len(_QUICK)]]
_TOPOLOGIES = ("v5e:2x2", "v6e:2x2") if ALL else (("v5e:2x2", "v6e:2x2")[PART % 2],)


def _shardings(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    """Batches over one axis; weights over the other, by their first dim where that is even."""
    weights = {
        re.escape(name): ("model",)
        for name, p in model.named_parameters()
        if p.dim() > 1 and p.shape[0] % 2 == 0
    }
    return weights | {re.escape(f"args.{n}"): ("data",) for n in range(len(inputs))}


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize("topology", _TOPOLOGIES)
@pytest.mark.parametrize("name", _TODAY)
@pytest.mark.timeout(600)
def test_a_training_step_compiles_alone_and_sharded(name: str, topology: str) -> None:
    model, inputs, loss = MODELS[name]()
    model.to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(*given: Tensor) -> Tensor:
        optimizer.zero_grad()
        found = loss(model(*given))
        found.backward()
        optimizer.step()
        return found

    def report(**how: Any) -> Any:
        return torchtpu.aot_compile(
            step, inputs, modules=(model,), optimizers=(optimizer,), topology=topology, **how
        )

    alone = report()
    sharded = report(mesh={"data": 2, "model": 2}, shardings=_shardings(model, inputs))
    assert alone.flops > 0
    assert (alone.devices, sharded.devices) == (1, 4)
    assert alone.collectives == {}
    assert sharded.collectives
    assert sharded.argument_bytes < alone.argument_bytes
