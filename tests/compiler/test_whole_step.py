"""Whole steps: one program per training step, right after every change it can see."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from torchtpu import executor
from torchtpu.compiler.debug import TpuCompileDebug
from torchtpu.compiler.whole_step import WholeStep
from torchtpu.optimizers import SingleTraceTrainer

mse = nn.functional.mse_loss


def ramp(*shape: int) -> torch.Tensor:
    return torch.linspace(-9, 9, torch.Size(shape).numel()).sin().reshape(shape)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


def reference(model: nn.Module, optimizer: torch.optim.Optimizer, x: Any, y: Any) -> float:
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.05),
        lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.NAdam(p, lr=0.01),
    ],
    ids=["adamw", "amsgrad", "sgd", "rmsprop", "nadam"],
)
def test_training_agrees_with_cpu_and_compiles_twice_at_most(make: Callable[..., Any]) -> None:
    ours, theirs = small().to("tpu"), small()
    trainer = SingleTraceTrainer(ours, make(ours.parameters()), mse)
    optimizer = make(theirs.parameters())
    x, y = ramp(4, 6), ramp(4, 3)
    batch = x.to("tpu"), y.to("tpu")
    losses = [trainer.step(*batch).item() for _ in range(3)]
    before = executor.current().cache.stats.requests
    losses += [trainer.step(*batch).item() for _ in range(5)]
    assert executor.current().cache.stats.requests == before
    wanted = [reference(theirs, optimizer, x, y) for _ in range(8)]
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-6)
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-5)


def test_a_learning_rate_schedule_compiles_nothing() -> None:
    ours, theirs = small().to("tpu"), small()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in (ours, theirs)]
    trainer = SingleTraceTrainer(ours, optimizers[0], mse)
    x, y = ramp(4, 6), ramp(4, 3)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.7) for o in optimizers]
    for step in range(6):
        if step == 2:
            before = torch.tpu._get_cache_stats()["num_compilations"]
        loss = trainer.step(x, y).item()
        assert loss == pytest.approx(reference(theirs, optimizers[1], x, y), rel=1e-4)
        for schedule in schedules:
            schedule.step()
    assert torch.tpu._get_cache_stats()["num_compilations"] == before


def test_loaded_states_new_modes_and_new_shapes_are_seen() -> None:
    ours, theirs = small().to("tpu"), small()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in (ours, theirs)]
    trainer = SingleTraceTrainer(ours, optimizers[0], mse)

    def both(n: int) -> None:
        x, y = ramp(n, 6), ramp(n, 3)
        loss = trainer.step(x, y).item()
        assert loss == pytest.approx(reference(theirs, optimizers[1], x, y), rel=1e-4)

    for n in (4, 4, 4, 5, 4):
        both(n)
    saved = [copy.deepcopy(o.state_dict()) for o in optimizers]
    both(4)
    for optimizer, state in zip(optimizers, saved, strict=True):
        optimizer.load_state_dict(state)
    both(4)
    for model in (ours, theirs):
        model.eval()
    both(4)
    for model in (ours, theirs):
        weight = model.get_parameter("1.weight")
        weight.data = weight.data * 0.5
    both(4)


def test_the_model_itself_may_return_the_loss() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = self.inner(x)
            return mse(out, y), out

    model = WithLoss().to("tpu")
    trainer = SingleTraceTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    losses = [trainer.step(ramp(4, 3), ramp(4, 1)).item() for _ in range(4)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("adds_up", [False, True])
def test_gradients_that_are_dropped_first_are_no_other_step(adds_up: bool) -> None:
    """zero_grad() before backward() makes new gradients at each call; without it they add up."""
    torch.manual_seed(0)
    nets = [torch.nn.Linear(4, 3, device=device) for device in ("tpu", "cpu")]
    nets[1].load_state_dict(nets[0].state_dict())
    runs: list[Any] = []
    calls = 0

    def step(net: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += net is nets[0]
        loss = net(x).square().mean()
        if not adds_up:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        detached: torch.Tensor = loss.detach()
        return detached

    for net in nets:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        run: Any = partial(step, net, optimizer)
        run = WholeStep(run, [net], [optimizer]) if net is nets[0] else run
        x = torch.ones(2, 4, device=net.weight.device)
        runs.append([float(run(x * n)) for n in range(1, 7)])
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)
    assert calls <= 3  # the first makes gradients and momentum
    for mine, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-4)


def test_dropout_differs_from_step_to_step() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1)).to("tpu")
    trainer = SingleTraceTrainer(model, torch.optim.SGD(model.parameters(), lr=0.0), mse)
    x, y = torch.ones(2, 64), torch.zeros(2, 1)
    torch.manual_seed(1)
    first = [trainer.step(x, y).item() for _ in range(5)]
    torch.manual_seed(1)
    again = [trainer.step(x, y).item() for _ in range(5)]
    assert len(set(first)) == 5
    assert first == again


def test_tensors_that_nobody_named_are_read_anew_and_written() -> None:
    scale, total = torch.full((1,), 2.0, device="tpu"), torch.zeros(3, device="tpu")

    def step(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return x * scale

    run, x = WholeStep(step), torch.ones(3, device="tpu")
    assert run(x).tolist() == [2, 2, 2]
    scale.fill_(5.0)
    assert run(x).tolist() == [5, 5, 5]
    assert total.tolist() == [2, 2, 2]


def test_a_step_that_reads_a_value_runs_op_by_op_with_a_warning() -> None:
    model = nn.Linear(3, 1).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def loss_fn(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = mse(out, y)
        seen.append(loss.item())
        return loss

    trainer = SingleTraceTrainer(model, optimizer, loss_fn)
    with pytest.warns(UserWarning, match="runs op by op.*value of a tensor"):
        trainer.step(ramp(4, 3).to("tpu"), ramp(4, 1).to("tpu"))
    trainer.step(ramp(4, 3).to("tpu"), ramp(4, 1).to("tpu"))
    assert seen[1] < seen[0]


def test_an_error_in_the_step_leaves_model_and_optimizer_as_they_were() -> None:
    model = nn.Linear(3, 1).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    trainer = SingleTraceTrainer(model, optimizer, mse)
    before = model.weight.tolist()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        trainer.step(ramp(4, 5), ramp(4, 1))
    assert model.weight.tolist() == before
    assert not optimizer.state
    assert trainer.step(ramp(4, 3), ramp(4, 1)).item() > 0


def test_names_of_torch_tpu() -> None:
    compile_ = importlib.import_module("torch_tpu._internal.compile")
    names = importlib.import_module("torch.tpu.optimizers")
    assert torch.tpu.optimizers.SingleTraceTrainer is SingleTraceTrainer
    assert compile_.TpuCompileDebug is TpuCompileDebug
    layer = nn.Linear(2, 2).to("tpu")
    assert names.AdamW(layer.parameters()).defaults["fused"]
    assert names.Sgd(layer.parameters()).defaults["fused"]
    assert issubclass(names.Muon, torch.optim.Optimizer)
    plus_one = torch.compile(lambda x: x + 1, backend=compile_.TpuBackend())
    assert plus_one(torch.ones(1, device="tpu")).item() == 2


class Slowing(torch.optim.Optimizer):
    """Gradient descent whose rate falls with a count that is a tensor of the CPU."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # takes no closure
        for group in self.param_groups:
            for p in group["params"]:
                count = self.state[p].setdefault("step", torch.tensor(0.0))
                count += 1
                p.add_(p.grad, alpha=-group["lr"] / count.item())


def test_an_optimizer_that_counts_on_the_host_runs_op_by_op_and_right() -> None:
    ours, theirs = small().to("tpu"), small()
    trainer = SingleTraceTrainer(ours, Slowing(ours.parameters()), mse)
    optimizer = Slowing(theirs.parameters())
    x, y = ramp(4, 6), ramp(4, 3)
    with pytest.warns(UserWarning, match="runs op by op.*'step' of its state"):
        losses = [trainer.step(x.to("tpu"), y.to("tpu")).item()]
    losses += [trainer.step(x.to("tpu"), y.to("tpu")).item() for _ in range(4)]
    wanted = [reference(theirs, optimizer, x, y) for _ in range(5)]
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-6)


def test_a_learning_rate_in_a_tensor_of_the_cpu_is_seen() -> None:
    ours, theirs = small().to("tpu"), small()
    rates = [torch.tensor(0.05) for _ in range(2)]
    optimizers = [
        torch.optim.AdamW(m.parameters(), lr=r, fused=True)
        for m, r in zip((ours, theirs), rates, strict=True)
    ]
    trainer = SingleTraceTrainer(ours, optimizers[0], mse)
    x, y = ramp(4, 6), ramp(4, 3)
    for _ in range(4):
        loss = trainer.step(x, y).item()
        assert loss == pytest.approx(reference(theirs, optimizers[1], x, y), rel=1e-4)
        for rate in rates:
            rate.mul_(0.5)


def test_a_step_between_forward_and_backward_is_an_error_and_not_a_wrong_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).to("tpu")
    trainer = SingleTraceTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), mse)
    x, y = ramp(4, 3).to("tpu"), ramp(4, 1).to("tpu")
    for _ in range(2):
        loss = mse(model(x), y)
        trainer.step(x, y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_arguments_and_views_of_them_are_returned() -> None:
    step = WholeStep(lambda z: (z, z[0].conj(), z.T))
    z = torch.randn(3, 4, dtype=torch.complex64, device="tpu")
    for given in (z, z.conj(), z):
        for ours, theirs in zip(step(given), (given, given[0].conj(), given.T), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs.cpu())
