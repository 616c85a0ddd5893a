"""Regions in which all ranks do the same."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from torchtpu.distributed.safe import is_marked, is_spmd_safe, spmd_safe
from torchtpu.errors import TpuError


def test_a_region_is_of_its_thread_and_ends_with_its_block() -> None:
    seen: list[bool] = []
    with spmd_safe():
        assert is_spmd_safe()
        with spmd_safe():
            assert is_spmd_safe()
        assert is_spmd_safe()
        other = threading.Thread(target=lambda: seen.append(is_spmd_safe()))
        other.start()
        other.join()
    assert seen == [False]
    assert not is_spmd_safe()


def test_a_function_a_module_and_what_is_neither() -> None:
    @spmd_safe
    def inside(value: int) -> tuple[int, bool]:
        return value, is_spmd_safe()

    assert inside(3) == (3, True)
    assert inside.__name__ == "inside"

    @spmd_safe
    def fails() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not is_spmd_safe()

    class Asks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if is_spmd_safe() else -x

    module = Asks()
    assert spmd_safe(module) is module
    assert module(torch.ones(1)).item() == 1
    with pytest.raises(TpuError, match="expected a function, a module or nothing, got 3"):
        spmd_safe(3)  # type: ignore[call-overload]  # the point of the test


def test_graphs_carry_the_mark() -> None:
    marked: dict[str, bool] = {}

    def backend(module: Any, _inputs: Any) -> Any:
        marked.update({n.name: is_marked(n) for n in module.graph.nodes if "call" in n.op})
        return module

    @spmd_safe
    def safe(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def whole(x: torch.Tensor) -> torch.Tensor:
        with spmd_safe():
            y = x.cos()
        return safe(y).exp()

    x = torch.ones(2)
    result = torch.compile(whole, backend=backend, fullgraph=True)(x)
    assert torch.equal(result, x.cos().sin().exp())
    assert marked == {"y": True, "sin": True, "exp": False}


def test_a_compiled_function_is_compiled_inside() -> None:
    seen = []

    def backend(module: Any, _inputs: Any) -> Any:
        seen.append(is_spmd_safe())
        return module

    spmd_safe(torch.compile(torch.sin, backend=backend))(torch.ones(2))
    assert seen == [True]
