"""Graphs that also touch CPU tensors: those ops run first, and the rest is one program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchtpu.compiler.backend import TpuBackend

Function = Callable[[Tensor, Tensor], object]


def _before(x: Tensor, count: Tensor) -> Tensor:
    count.add_(1)
    return x * (1 - 0.9**count)


def _read_and_changed(x: Tensor, count: Tensor) -> Tensor:
    y = x * count
    count.add_(1)
    return y


def _behind(x: Tensor, count: Tensor) -> Tensor:
    return x.sum().cpu() + count


def _both(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x + 1, count * 2, count


FUNCTIONS: dict[Function, int] = {_before: 1, _read_and_changed: 0, _behind: 0, _both: 1}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values_and_changes_are_those_of_eager(function: Function) -> None:
    programs: list[object] = []
    compiled = torch.compile(function, backend=TpuBackend(debug_callback=programs.append))
    counts = [torch.tensor(3.0), torch.tensor(3.0)]
    for number in range(3):
        x = torch.full((2, 2), float(number))
        wanted, found = function(x, counts[0]), compiled(x.to("tpu"), counts[1])
        torch.testing.assert_close(found, wanted, check_device=False)
        assert torch.equal(*counts)
    assert len(programs) == FUNCTIONS[function]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("kind", ["AdamW", "NAdam", "RAdam"])
def test_the_update_of_an_optimizer_is_one_program(kind: str) -> None:
    programs: list[object] = []
    backend = TpuBackend(debug_callback=programs.append)

    def trained(device: str) -> Tensor:
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(4, 3).to(device))
        optimizer = getattr(torch.optim, kind)([weight], lr=0.1)
        step = torch.compile(optimizer.step, backend=backend) if device == "tpu" else optimizer.step
        for _ in range(4):
            weight.grad = weight.detach() + 1
            step()
        return weight.detach().cpu()

    torch.testing.assert_close(trained("tpu"), trained("cpu"))
    assert 1 <= len(programs) <= 2  # the first step makes the state
