"""Every optimizer of torch's optimizer database does on the device what it does on the CPU.

All its option sets, also with foreach, fused and capturable where torch has them: 20 steps, with a
state_dict carried over to a new optimizer half-way, and the learning rate as a number and a tensor.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.daily import ALL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of optional packages that are absent
    from torch.testing._internal.common_optimizers import optim_db

SETS = 2  # of options per optimizer and implementation in the default run
STEPS = 20
TOLERANCE = 1e-4
LOOSE = {"Muon": 2e-3}  # orthogonalises in bfloat16
NO_STATE = {"LBFGS"}  # near the minimum its directions are quotients of rounding errors
MODES = (torch.tpu.EagerMode.DEFER_AND_FUSE, torch.tpu.EagerMode.DEFER_NEVER)
# How a step is computed: the CPU's reference is the plain loop, of the same mathematics.
HOW = frozenset({"foreach", "fused", "capturable", "differentiable"})

pytestmark = [
    pytest.mark.timeout(3600 if ALL else 120),
    pytest.mark.filterwarnings("ignore"),  # torch's own, of its database's odd options
    pytest.mark.filterwarnings(r"error:\[torchtpu\]"),
]


def options_of(info: Any, implementation: str) -> list[dict[str, Any]]:
    """The database's options for a device that captures graphs, with an implementation chosen."""
    sets = [dict(example.kwargs) for example in info.optim_inputs_func(device="cuda")]
    if implementation != "loop":
        sets = [{**options, implementation: True} for options in sets]
    elif "foreach" in info.supported_impls:
        sets = [{**options, "foreach": False} for options in sets]
    if implementation == "foreach":  # with which torch takes a tensor only to be captured
        sets = [o for o in sets if o.get("capturable") or not has_tensors(o)]
    return sets if ALL else sets[-1 : -SETS - 1 : -1]


def has_tensors(options: dict[str, Any]) -> bool:
    """Tell whether an option is a tensor, or a pair with one."""
    values = [v for o in options.values() for v in (o if isinstance(o, tuple) else [o])]
    return any(isinstance(v, Tensor) for v in values)


def plain(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the reference."""
    return {n: v for n, v in copy.deepcopy(options).items() if n not in HOW}


def parameters(device: str) -> list[Tensor]:
    """A matrix, a vector and a number; drawn on the host."""
    torch.manual_seed(0)
    drawn = [torch.randn(3, 4), torch.randn(4), torch.randn(())]
    return [t.to(device).requires_grad_() for t in drawn]


def loss_of(found: list[Tensor], step: int) -> Tensor:
    """Convex, and another one for each step."""
    matrix, vector, number = found
    apart = (matrix + vector - step % 5).square().sum() + (vector - number).square().sum()
    return (apart + (number - 1).square()) / 8


def make(info: Any, found: list[Tensor], options: dict[str, Any]) -> Any:
    """The optimizer; Muon takes the matrix only, SparseAdam what has rows."""
    count = {"Muon": 1, "SparseAdam": 2}.get(info.optim_cls.__name__, 3)
    return info.optim_cls(found[:count], **options)


def closure_of(info: Any, optimizer: Any, found: list[Tensor], step: int) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(found, step)
        loss.backward()
        if info.only_supports_sparse_grads:
            for t in found[:2]:
                assert t.grad is not None
                t.grad = t.grad.to_sparse()
        return loss

    return closure


def train(info: Any, options: dict[str, Any], device: str) -> tuple[list[Tensor], Any]:
    """Parameters and optimizer state on the host after 20 steps and a change of the optimizer."""
    found = parameters(device)
    options = {n: v.to(device) if isinstance(v, Tensor) else v for n, v in options.items()}
    optimizer = make(info, found, options)
    for step in range(STEPS):
        if step == STEPS // 2:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = make(info, found, options)
            optimizer.load_state_dict(saved)
        # A search along a line is for one loss: after a change, rounding decides when it stops.
        loss_number = 0 if info.step_requires_closure else step
        closure = closure_of(info, optimizer, found, loss_number)
        if info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    state = {} if info.optim_cls.__name__ in NO_STATE else optimizer.state_dict()["state"]
    return [t.detach().cpu() for t in found], on_host(state)


def on_host(state: Any) -> Any:
    """A state with its tensors on the host, and its numbers as tensors."""
    if isinstance(state, dict):
        return {n: on_host(v) for n, v in state.items()}
    if isinstance(state, (list, tuple)):
        return [on_host(v) for v in state]
    if isinstance(state, Tensor):
        return state.cpu()
    return torch.tensor(float(state)) if isinstance(state, (int, float)) else state


def located(where: str, text: str) -> str:
    """An assertion's text after what it is about."""
    return f"{where}\n{text}"


def cases() -> Iterator[Any]:
    for info in optim_db:
        for implementation in ("loop", *info.supported_impls):
            name = f"{info.optim_cls.__name__}-{implementation}"
            if implementation != "differentiable":
                yield pytest.param(info, implementation, id=name)


@pytest.mark.parametrize(("info", "implementation"), list(cases()))
def test_optimizer_equals_cpu(info: Any, implementation: str) -> None:
    """The option sets take turns in the modes."""
    tolerance = LOOSE.get(info.optim_cls.__name__, TOLERANCE)
    for number, options in enumerate(options_of(info, implementation)):
        expected = train(info, plain(options), "cpu")
        with torch.tpu.set_eager_mode(MODES[number % 2]):
            actual = train(info, copy.deepcopy(options), "tpu")
        assert_close(
            actual,
            expected,
            rtol=tolerance,
            atol=tolerance,
            msg=partial(located, str(options)),
            check_dtype=False,  # a step counts as a float32 number where it is to be captured
        )


DIFFERENTIABLE = [info for info in optim_db if "differentiable" in info.supported_impls]


def through_a_step(info: Any, device: str) -> list[Tensor]:
    """Gradients of a loss after a step with respect to the parameters before it."""
    first = parameters(device)
    found = [t.clone() for t in first]
    optimizer = info.optim_cls(found, lr=0.01, differentiable=True)
    grads = torch.autograd.grad(loss_of(first, 0), first, create_graph=True)
    for t, grad in zip(found, grads, strict=True):
        t.grad = grad
    optimizer.step()
    return [g.cpu() for g in torch.autograd.grad(loss_of(found, 3), first)]


@pytest.mark.parametrize("info", DIFFERENTIABLE, ids=lambda info: info.optim_cls.__name__)
def test_a_step_is_differentiable(info: Any) -> None:
    expected, actual = through_a_step(info, "cpu"), through_a_step(info, "tpu")
    assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
