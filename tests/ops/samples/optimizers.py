"""Fused optimizer steps and the scaling of gradients, as torch.optim and torch.amp call them."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.samples.call import Call, call, values


def made() -> list[tuple[str, Call]]:
    """Return overloads' names, several in a string where they share a call, with their calls."""
    return [*_adam(), *_sgd(), *_adagrad(), *_scaling()]


def _lists(count: int) -> list[list[torch.Tensor]]:
    """Lists of a matrix and a vector; those after the gradients are not negative, as states are."""
    shapes = ((3, 4), (5,))
    signed = [[values(*s) for s in shapes], [values(*s) / 3 for s in shapes]]
    return signed + [[values(*s, low=0.1) / n for s in shapes] for n in range(1, count - 1)]


def _steps() -> list[torch.Tensor]:
    return [torch.tensor(3.0), torch.tensor(1.0)]


def _scaler(found: float = 0.0) -> dict[str, Any]:
    return {"grad_scale": torch.tensor([4.0]), "found_inf": torch.tensor([found])}


def _rates(name: str, *args: Any, **options: Any) -> list[tuple[str, Call]]:
    """A step with the learning rate as a number and as a tensor."""
    return [
        (name, call(*args, lr=0.1, **options)),
        (f"{name}.tensor_lr", call(*args, lr=torch.tensor(0.1), **options)),
    ]


def _adam() -> list[tuple[str, Call]]:
    found: list[tuple[str, Call]] = []
    betas = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
    for name in ("_fused_adam_", "_fused_adamw_"):
        for amsgrad, more in ((False, {}), (True, _scaler()), (True, _scaler(1.0))):
            *lists, most = _lists(5)
            options = {"weight_decay": 0.1, "amsgrad": amsgrad, "maximize": amsgrad}
            args = (*lists, most if amsgrad else [], _steps())
            found += _rates(name, *args, **betas, **options, **more)
    return found


def _sgd() -> list[tuple[str, Call]]:
    options = {"weight_decay": 0.1, "dampening": 0.2}
    first = {"nesterov": False, "maximize": True, "is_first_step": True}
    later = {"nesterov": True, "maximize": False, "is_first_step": False}
    plain = {"momentum": 0.0, **options, **later, "nesterov": False}
    return [
        *_rates("_fused_sgd_", *_lists(2), [], **plain),
        *_rates("_fused_sgd_", *_lists(3), momentum=0.9, **options, **first),
        *_rates("_fused_sgd_", *_lists(3), momentum=0.9, **options, **later, **_scaler()),
        *_rates("_fused_sgd_", *_lists(3), momentum=0.9, **options, **later, **_scaler(1.0)),
    ]


def _adagrad() -> list[tuple[str, Call]]:
    options = {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-10}
    return [
        *_rates("_fused_adagrad_", *_lists(3), _steps(), **options, maximize=False),
        *_rates("_fused_adagrad_", *_lists(3), _steps(), **options, maximize=True, **_scaler()),
        *_rates("_fused_adagrad_", *_lists(3), _steps(), **options, maximize=True, **_scaler(1.0)),
    ]


def _scaling() -> list[tuple[str, Call]]:
    finite, infinite = [values(3, 4), values(5)], [values(3, 4), values(5)]
    infinite[1][2] = torch.inf
    check = "_amp_foreach_non_finite_check_and_unscale_"
    update = "_amp_update_scale_"
    scale, none, one = torch.tensor([8.0]), torch.tensor([0.0]), torch.tensor([1.0])
    count = torch.tensor([1], dtype=torch.int32)
    return [
        (check, call(finite, none, torch.tensor([0.25]))),
        (check, call(infinite, none, torch.tensor([0.25]))),
        (update, call(scale, count, none, 2.0, 0.5, 2)),
        (update, call(scale, count, none, 2.0, 0.5, 9)),
        (update, call(scale, count, one, 2.0, 0.5, 2)),
    ]
