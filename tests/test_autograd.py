"""Autograd on the device: hooks, double backward, custom functions, checkpoints, torch.func."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, device="tpu", requires_grad=True)


def grad(x: Tensor) -> list[float]:
    assert x.grad is not None
    values: list[float] = x.grad.tolist()
    return values


def test_hooks() -> None:
    seen: list[str] = []
    x = leaf(1.0, 2.0)
    x.register_hook(lambda g: g * 2)
    x.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    module = nn.Identity()
    module.register_full_backward_hook(lambda *_: seen.append("backward"))
    y = module(x * 3)
    y.retain_grad()
    y.sum().backward()
    assert grad(x) == [6, 6]
    assert grad(y) == [1, 1]
    assert seen == ["backward", "accumulated"]


def test_double_backward() -> None:
    x = leaf(1.0, 2.0)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [6, 12]
    assert torch.autograd.gradcheck(
        lambda v: (v.sin() * v).sum(), leaf(1.0, 2.0).detach().double().requires_grad_()
    )


class Doubled(torch.autograd.Function):
    """Twice the input; the gradient is the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        result: Tensor = gradients[0] * x
        return result


def test_custom_function() -> None:
    x = leaf(3.0, 4.0)
    y: Any = Doubled.apply(x)  # type: ignore[no-untyped-call]  # torch's own
    y.sum().backward()
    assert grad(x) == [3, 4]


def test_in_place_through_a_view_is_differentiated() -> None:
    x = leaf(1.0, 2.0, 3.0, 4.0)
    y = x * 1
    y[::2].mul_(3)
    y.view(2, 2).t()[0].exp_()
    y.sum().backward()
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    z = expected * 1
    z[::2].mul_(3)
    z.view(2, 2).t()[0].exp_()
    z.sum().backward()
    torch.testing.assert_close(x.grad, expected.grad, check_device=False)


def test_versions_are_counted() -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    loss = (y * y).sum()
    y[0].add_(1)
    assert y._version == y.view(2)._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.add_(1)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_repeats_its_random_numbers(reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU()).to("tpu")
    gradients = []
    for checkpointed in (True, False):
        x = torch.arange(16.0, device="tpu").reshape(2, 8).requires_grad_()
        torch.manual_seed(2)
        if checkpointed:
            y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
        else:
            y = model(x)
        y.sum().backward()
        gradients.append(grad(x))
    assert gradients[0] == gradients[1]


def test_no_grad_and_inference_mode() -> None:
    x = leaf(1.0)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        y[0].add_(1)
    assert y.is_inference()
    with pytest.raises(RuntimeError, match="inference tensor"):
        y.requires_grad_()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
def test_func() -> None:
    x = torch.tensor([1.0, 2.0], device="tpu")
    assert torch.func.grad(lambda v: (v**2).sum())(x).tolist() == [2, 4]
    assert torch.func.jvp(lambda v: (v**2).sum(), (x,), (x,))[1].item() == 10
    assert torch.func.vmap(lambda v: v * v.sum())(torch.stack([x, x])).tolist() == [[3, 6], [3, 6]]
    assert torch.func.hessian(lambda v: (v**3).sum())(x).diagonal().tolist() == [6, 12]
    module = nn.Linear(2, 1, bias=False)
    there = {"weight": torch.tensor([[1.0, 10.0]], device="tpu")}
    assert torch.func.functional_call(module, there, (x,)).tolist() == [21]


def test_clipping_and_accumulation() -> None:
    x = leaf(3.0, 4.0)
    for _ in range(2):
        (x * x).sum().backward()
    assert grad(x) == [12, 16]
    norm = nn.utils.clip_grad_norm_([x], 5.0)
    assert norm.item() == 20
    torch.testing.assert_close(x.grad, torch.tensor([3.0, 4.0]), check_device=False)
    nn.utils.clip_grad_value_([x], 3.5)
    torch.testing.assert_close(x.grad, torch.tensor([3.0, 3.5]), check_device=False)


def test_modules_change_dtype_and_device() -> None:
    module = nn.Linear(2, 2)
    weight = module.weight
    for cast, dtype in (
        ("half", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("double", torch.float64),
    ):
        assert getattr(module.to("tpu"), cast)().weight.dtype == dtype
    assert module.weight is weight
    assert module.cpu().weight.device.type == "cpu"
    assert nn.Linear(2, 2, device="meta").to_empty(device="tpu").weight.device.type == "tpu"
    assert nn.Linear(2, 2).tpu().bias.is_tpu  # type: ignore[operator]  # put there by torch for the device


def test_a_failing_backward_leaves_the_device_usable() -> None:
    class Broken(Doubled):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            raise ValueError("broken on purpose")

    y: Any = Broken.apply(leaf(1.0))  # type: ignore[no-untyped-call]  # torch's own
    with pytest.raises(ValueError, match="on purpose"):
        y.sum().backward()
    assert (leaf(1.0) + 1).item() == 2
