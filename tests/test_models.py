"""Models and optimizers on the device give what they give on torch's own CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.models import CASES, DEVICE, Case

TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a short training left behind, on the host."""

    losses: list[Tensor]
    first_gradients: dict[str, Tensor]
    state: dict[str, Tensor]


def run(case: Case, device: str, steps: int = 3) -> Run:
    """Train from a fixed start; model and batch are drawn on the host."""
    torch.manual_seed(0)
    model = case.build().to(case.training_dtype).to(device)
    inputs, targets = case.batch()
    if inputs.is_floating_point():
        inputs = inputs.to(case.training_dtype)
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01)
    losses: list[Tensor] = []
    gradients: dict[str, Tensor] = {}
    for _ in range(steps):
        optimizer.zero_grad()
        loss = case.loss(model(inputs), targets)
        loss.backward()
        gradients = gradients or {
            name: parameter.grad.cpu()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        optimizer.step()
        losses.append(loss.detach().cpu())
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    return Run(losses=losses, first_gradients=gradients, state=state)


@pytest.mark.parametrize("name", CASES)
def test_training_equals_cpu(name: str) -> None:
    ours, theirs = run(CASES[name], DEVICE), run(CASES[name], "cpu")
    assert len(ours.first_gradients) == len(list(CASES[name].build().named_parameters()))
    assert_close(ours.losses, theirs.losses, rtol=TOLERANCE, atol=TOLERANCE)
    assert_close(ours.first_gradients, theirs.first_gradients, rtol=TOLERANCE, atol=TOLERANCE)
    assert_close(ours.state, theirs.state, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_inference_equals_cpu(name: str) -> None:
    torch.manual_seed(0)
    model, (inputs, _) = CASES[name].build().eval(), CASES[name].batch()
    with torch.no_grad():
        theirs = model(inputs)
        ours = model.to(DEVICE)(inputs.to(DEVICE))
    assert ours.device.type == DEVICE
    assert_close(ours.cpu(), theirs, rtol=TOLERANCE, atol=TOLERANCE)


# SparseAdam takes sparse gradients only, and the device has no sparse tensors.
OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)
    if name not in {"Optimizer", "SparseAdam"}
)


# Muon orthogonalises in bfloat16. LBFGS amplifies rounding: scaling the data by 1 + 2e-7 moves
# its result by 3e-4 on the CPU alone.
LOOSE = {"LBFGS": 2e-3, "Muon": 2e-3}


def variants(name: str) -> list[dict[str, bool]]:
    """Keyword arguments to test an optimizer with: both values of foreach where it has that."""
    has_foreach = "foreach" in inspect.signature(getattr(torch.optim, name)).parameters
    return [{"foreach": True}, {"foreach": False}] if has_foreach else [{}]


OPTIMIZER_CASES = [
    pytest.param(name, options, id="-".join([name, *("foreach" for v in options.values() if v)]))
    for name in OPTIMIZERS
    for options in variants(name)
]


def optimize(name: str, options: dict[str, bool], device: str) -> list[Tensor]:
    """Parameters, on the host, of a small model after five steps."""
    torch.manual_seed(0)
    biased = name != "Muon"  # which takes matrices only
    model = nn.Sequential(nn.Linear(8, 16, biased), nn.Tanh(), nn.Linear(16, 4, biased))
    inputs, targets = torch.randn(6, 8), torch.randn(6, 4)
    model, inputs, targets = model.to(device), inputs.to(device), targets.to(device)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    return [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize(("name", "options"), OPTIMIZER_CASES)
def test_optimizer_equals_cpu(name: str, options: dict[str, bool]) -> None:
    ours, theirs = optimize(name, options, DEVICE), optimize(name, options, "cpu")
    tolerance = LOOSE.get(name, TOLERANCE)
    assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]] = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=10),
}


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_clipping_and_schedule_equal_cpu(schedule: str, foreach: bool) -> None:
    def parameters(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        model, inputs = nn.Linear(8, 4).to(device), torch.randn(6, 8).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=foreach)
        scheduler = SCHEDULES[schedule](optimizer)
        for _ in range(5):
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach)
            optimizer.step()
            scheduler.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    assert_close(parameters(DEVICE), parameters("cpu"), rtol=TOLERANCE, atol=TOLERANCE)
