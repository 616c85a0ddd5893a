"""Ops on lists, and every optimizer of torch.optim: equal to CPU, and no recompilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.05}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.01, "maximize": True}),
    ("AdamW", {"lr": 0.01, "amsgrad": True}),
    ("AdamW", {"lr": 0.01, "capturable": True}),
    ("Adamax", {"lr": 0.01, "weight_decay": 0.01}),
    ("NAdam", {"lr": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.01}),
    ("RAdam", {"lr": 0.01}),
    ("Adadelta", {"lr": 0.5}),
    ("Adagrad", {"lr": 0.05, "lr_decay": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True}),
    ("Rprop", {"lr": 0.01}),
    ("ASGD", {"lr": 0.01}),
]
FUSED: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.01, "maximize": True}),
    ("AdamW", {"lr": 0.01}),
    ("Adagrad", {"lr": 0.05, "lr_decay": 0.01}),
]


def _label(case: Any) -> str:
    return f"{case[0]}-{'-'.join(case[1])}"


def _model(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(device)


def _train(
    device: str, make: Callable[[Any], torch.optim.Optimizer], steps: int = 10
) -> tuple[list[torch.Tensor], list[int]]:
    """Return the parameters after the steps and how many programs each step compiled."""
    model = _model(device)
    optimizer = make(model.parameters())
    torch.manual_seed(1)
    data = torch.randn(8, 6).to(device)
    compiled = []
    for step in range(steps):
        before = torch.tpu._get_cache_stats()["num_compilations"]
        for group in optimizer.param_groups:
            if not isinstance(group["lr"], torch.Tensor):
                group["lr"] *= 1 - 0.01 * step
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        compiled.append(torch.tpu._get_cache_stats()["num_compilations"] - before)
    return [p.detach().cpu() for p in model.parameters()], compiled


def _compare(name: str, options: dict[str, Any], **device_options: Any) -> None:
    make = getattr(torch.optim, name)
    on_cpu = {k: v for k, v in options.items() if k != "capturable"}
    expected, _ = _train("cpu", lambda p: make(p, **on_cpu))
    actual, compiled = _train("tpu", lambda p: make(p, **options, **device_options))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)
    assert compiled[-3:] == [0, 0, 0], f"programs compiled per step: {compiled}"


@pytest.mark.parametrize("case", OPTIMIZERS, ids=_label)
def test_foreach_optimizer_equals_cpu(case: tuple[str, dict[str, Any]]) -> None:
    _compare(*case, foreach=True)


@pytest.mark.parametrize("case", {c[0]: c for c in OPTIMIZERS}.values(), ids=_label)
def test_single_tensor_optimizer_equals_cpu(case: tuple[str, dict[str, Any]]) -> None:
    _compare(*case, foreach=False)


@pytest.mark.parametrize("case", FUSED, ids=_label)
def test_fused_optimizer_equals_cpu(case: tuple[str, dict[str, Any]]) -> None:
    _compare(*case, fused=True)


def _launches(fn: Callable[[], Any]) -> list[str]:
    """The names of the programs that fn runs."""
    from torchtpu.eager import modes

    names: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        launch = modes.current.launch

        def recorded(call: Any, *rest: Any) -> Any:
            names.append(call.name)
            return launch(call, *rest)

        patch.setattr(modes.current, "launch", recorded)
        fn()
    return names


def test_foreach_is_the_default() -> None:
    model = _model("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 6, device="tpu")).sum().backward()
    optimizer.step()
    first = _launches(optimizer.step)
    assert any("_foreach" in name for name in first)
    assert not any(name == "aten::addcdiv_" for name in first)


@pytest.mark.parametrize("name", ["LBFGS", "Muon"])
def test_optimizers_without_lists(name: str) -> None:
    if name == "LBFGS":
        finals = [_lbfgs(device) for device in ("cpu", "tpu")]
        torch.testing.assert_close(finals[1], finals[0], rtol=1e-4, atol=1e-5)
        return
    weights = []
    for device in ("cpu", "tpu"):
        model = _model(device)
        optimizer = torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 6, device=device)).square().mean().backward()
            optimizer.step()
        weights.append(model[0].weight.detach().cpu())  # type: ignore[index]  # a Sequential
    torch.testing.assert_close(weights[1], weights[0], rtol=2e-2, atol=2e-3)


def _lbfgs(device: str) -> torch.Tensor:
    model = _model(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    torch.manual_seed(1)
    data = torch.randn(8, 6).to(device)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(data).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return next(iter(model.parameters())).detach().cpu()


def test_lists_of_several_dtypes_and_shapes() -> None:
    xs = [torch.ones(2), torch.ones(2, 2, dtype=torch.float64), torch.ones(3, dtype=torch.bfloat16)]
    expected = torch._foreach_addcmul(xs, xs, xs, [1.0, 2.5, 3.0])
    on_device = [x.to("tpu") for x in xs]
    actual = torch._foreach_addcmul(on_device, on_device, on_device, [1.0, 2.5, 3.0])
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        torch.testing.assert_close(a.cpu(), e)


@pytest.mark.usefixtures("strict")
def test_a_list_is_one_program() -> None:
    xs = [torch.ones(n, device="tpu") for n in range(1, 9)]
    before = torch.tpu._get_cache_stats()["num_compilations"]
    torch._foreach_mul_(xs, 2.0)
    assert torch.tpu._get_cache_stats()["num_compilations"] == before + 1
    torch._foreach_mul_(xs, 3.5)
    assert torch.tpu._get_cache_stats()["num_compilations"] == before + 1
    assert xs[-1].tolist() == [7.0] * 8


def test_copies_between_devices_and_dtypes() -> None:
    targets = [torch.zeros(2, device="tpu"), torch.zeros(2, dtype=torch.bfloat16, device="tpu")]
    torch._foreach_copy_(targets, [torch.ones(2), torch.full((2,), 2.0)])
    others = [torch.zeros(2, device="tpu"), torch.zeros(2, dtype=torch.int32)]
    torch._foreach_copy_(others, [targets[1], targets[0]])
    assert [t.tolist() for t in (*targets, *others)] == [[1, 1], [2, 2], [2, 2], [1, 1]]


def test_gradient_scaling_skips_infinite_steps() -> None:
    scaler = torch.amp.GradScaler("tpu", init_scale=4.0, growth_interval=1)
    weight = torch.ones(2, device="tpu", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for factor, expected, scale in ((0.5, 0.5, 8.0), (float("inf"), 0.5, 4.0)):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [expected, expected]
        assert scaler.get_scale() == scale


def test_clipping_the_norm_of_gradients() -> None:
    results = []
    for device in ("cpu", "tpu"):
        model = _model(device)
        (model(torch.ones(2, 6, device=device)) * 100).sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        results.append(
            [norm.cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]
        )
    for a, e in zip(*reversed(results), strict=True):
        torch.testing.assert_close(a, e)
