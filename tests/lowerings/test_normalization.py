"""Normalizations against torch's CPU: gradients, running statistics, half dtypes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.lowerings.opinfo import check

OPS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")


@pytest.mark.parametrize("name", OPS)
def test_opinfo(name: str) -> None:
    assert check(f"nn.functional.{name}", max_samples=3)


@pytest.mark.parametrize(
    "name", ["native_layer_norm", "native_group_norm", "_batch_norm_with_update"]
)
def test_native_opinfo(name: str) -> None:
    assert check(name, max_samples=2)


@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics(momentum: float | None) -> None:
    x = torch.randn(4, 3, 5, 5) * 2 + 1
    results = []
    for device in ("cpu", "tpu"):
        module = nn.BatchNorm2d(3, momentum=momentum).to(device)
        for scale in (1, 2, 3):
            module(x.to(device) * scale)
        evaluated = module.eval()(x.to(device))
        results.append((*module.state_dict().values(), evaluated.detach()))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_evaluation_leaves_the_statistics_alone() -> None:
    module = nn.BatchNorm1d(3).to("tpu").eval()
    module(torch.randn(4, 3, device="tpu"))
    assert module.running_mean is not None
    assert module.running_mean.cpu().equal(torch.zeros(3))


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_half_has_float32_statistics(name: str) -> None:
    x = (torch.randn(4, 512) + 100).bfloat16()  # a bfloat16 variance would be far off
    norm = getattr(F, name)
    expected = norm(x.float(), (512,)).bfloat16()
    torch.testing.assert_close(norm(x.to("tpu"), (512,)).cpu(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("strict")
def test_rms_norm_is_one_program() -> None:

    x, weight = torch.randn(3, 7, device="tpu"), torch.ones(7, device="tpu")
    before = torch.tpu._get_cache_stats()["num_compilations"]
    F.rms_norm(x, (7,), weight, 1e-6)
    assert torch.tpu._get_cache_stats()["num_compilations"] == before + 1


def test_weight_norm() -> None:
    torch.manual_seed(0)
    module = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    x, grads = torch.randn(2, 4), []
    for device in ("cpu", "tpu"):
        moved = module.to(device)
        moved.zero_grad()
        moved(x.to(device)).square().sum().backward()
        grads.append([p.grad.cpu().clone() for p in moved.parameters() if p.grad is not None])
    for expected, actual in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
def test_evaluation_saves_nothing(name: str) -> None:
    x, ones = torch.randn(2, 3, 4), torch.ones(3)
    made = []
    for device in ("cpu", "tpu"):
        moved = [t.to(device) for t in (x, ones, ones, ones, ones)]
        made.append(getattr(torch.ops.aten, name)(*moved, False, 0.1, 1e-5))
    for expected, actual in zip(*made, strict=True):
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
def test_batch_norm_into_out_and_running_statistics(name: str) -> None:
    x, weight = torch.linspace(-1, 1, 24).reshape(2, 3, 4), torch.ones(3)
    found = {}
    for device in ("cpu", "tpu"):
        statistics = [torch.zeros(3, device=device), torch.ones(3, device=device)]
        outs = [torch.empty(s, device=device) for s in ((2, 3, 4), (3,), (3,))]
        getattr(torch.ops.aten, name).out(
            x.to(device), weight.to(device), None, *statistics, True, 0.1, 1e-5,
            out=outs[0], save_mean=outs[1], save_invstd=outs[2],
        )  # fmt: skip
        found[device] = [t.cpu() for t in (*outs, *statistics)]
    torch.testing.assert_close(found["tpu"], found["cpu"])
