"""An exception in an autograd hook is raised by backward, and the process goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint


def fail(*_: Any) -> Any:
    raise ValueError("in a hook")


def _x() -> torch.Tensor:
    return torch.ones(2, 3, device="tpu", requires_grad=True)


def tensor_hook() -> torch.Tensor:
    y = _x() * 2
    y.register_hook(fail)
    return y.sum()


def leaf_hook() -> torch.Tensor:
    x = _x()
    x.register_hook(fail)
    return (x * 2).sum()


def accumulate_hook() -> torch.Tensor:
    x = _x()
    x.register_post_accumulate_grad_hook(fail)
    return (x * 2).sum()


def node_prehook() -> torch.Tensor:
    y = _x() * 2
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(fail)
    return y.sum()


def module_hook() -> torch.Tensor:
    layer = torch.nn.Linear(3, 3).to("tpu")
    layer.register_full_backward_hook(fail)
    return layer(_x()).sum()  # type: ignore[no-any-return]


def recompute() -> torch.Tensor:
    calls: list[int] = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.sin() if len(calls) == 1 else fail()

    result: torch.Tensor = checkpoint(twice, _x(), use_reentrant=False).sum()
    return result


@pytest.mark.parametrize(
    "loss", [tensor_hook, leaf_hook, accumulate_hook, node_prehook, module_hook, recompute]
)
def test_backward_raises_it_and_the_next_backward_works(loss: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="in a hook"):
        loss().backward()
    x = _x()
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3.0] * 3] * 2
