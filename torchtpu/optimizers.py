"""`torch.tpu.optimizers`: optimizers whose state stays on the device, and whole-step training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Muon, Optimizer

from torchtpu.compiler.whole_step import WholeStep

__all__ = ["AdamW", "Muon", "Optimizer", "Sgd", "SingleTraceTrainer"]


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW as one program: `fused=True` unless the arguments say otherwise."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **_fused_by_default(kwargs))


class Sgd(torch.optim.SGD):
    """torch.optim.SGD as one program: `fused=True` unless the arguments say otherwise."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **_fused_by_default(kwargs))


def _fused_by_default(kwargs: dict[str, Any]) -> dict[str, Any]:
    chosen = kwargs.keys() & {"fused", "foreach", "differentiable"}
    return kwargs if chosen else {**kwargs, "fused": True}


class SingleTraceTrainer:
    """Trains with one program per step: forward, backward and optimizer, without Python between.

    loss_fn: called as `loss_fn(model(inputs), *targets)`; without one the model itself is called
    with everything and returns the loss, alone, first in a tuple, or as `.loss`.
    Optimizers that can are told to keep their step count on the device (`fused`, else
    `capturable`); a changed learning rate is an input of the program and compiles nothing.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        loss_fn: Callable[..., torch.Tensor] | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        _keep_on_device(optimizer)
        modules = [m for m in (model, loss_fn) if isinstance(m, torch.nn.Module)]
        self._step = WholeStep(self._train, modules, [optimizer])

    def step(self, *batch: Any) -> torch.Tensor:
        """Train on a batch of tensors (of the device or the CPU); return the loss before it."""
        loss: torch.Tensor = self._step(*batch)
        return loss

    __call__ = step

    def _train(self, *batch: Any) -> torch.Tensor:
        self.optimizer.zero_grad()
        if self.loss_fn is None:
            loss = _loss_of(self.model(*batch))
        else:
            loss = self.loss_fn(self.model(batch[0]), *batch[1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def _loss_of(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    loss: torch.Tensor = output[0] if isinstance(output, tuple) else output.loss
    return loss


def _keep_on_device(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        free = not (group.get("fused") or group.get("foreach") or group.get("differentiable"))
        if "fused" in group and group["fused"] is None and free:
            group["fused"] = True
        if "capturable" in group and not group.get("fused"):
            group["capturable"] = True
    for state in optimizer.state.values():
        step = state.get("step")
        if isinstance(step, torch.Tensor) and step.device.type == "cpu":
            state["step"] = step.to("tpu")
