"""What torch.nn decides by device: parameters stay objects on a move, halves add up in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch.nn.modules import linear_cross_entropy_options

from torchtpu.private import torch as private


def install() -> None:
    """Let Module._apply swap tensors where they change their device from or to tpu.

    torch assigns `param.data` between devices that it knows as dense and makes new Parameters for
    others, which would untie shared weights and orphan an optimizer made before the move.
    """
    apply: Callable[..., Any] = torch.nn.Module._apply

    @functools.wraps(apply)
    def _apply(
        self: torch.nn.Module, fn: Callable[[torch.Tensor], Any], recurse: bool = True
    ) -> Any:
        future = torch.__future__
        if future.get_swap_module_params_on_conversion() or not _crosses(self, fn):
            return apply(self, fn, recurse)
        kept = [_Belongings(p) for p in self.parameters(recurse)]
        future.set_swap_module_params_on_conversion(True)
        try:
            return apply(self, fn, recurse)
        finally:
            future.set_swap_module_params_on_conversion(False)
            for belongings in kept:
                belongings.give_back()

    torch.nn.Module._apply = _apply  # type: ignore[method-assign]
    _accumulate_in_float32()


def _accumulate_in_float32() -> None:
    """Let a chunked cross entropy add its chunks up as on the CPU and CUDA, not in bfloat16."""
    options: Any = linear_cross_entropy_options.LinearCrossEntropyOptions
    chosen = options._resolve_auto_acc_dtype

    def resolve(dtype: torch.dtype, device: torch.device | None) -> torch.dtype | None:
        on_tpu = device is not None and device.type == "tpu"
        found: torch.dtype | None = chosen(dtype, torch.device("cpu") if on_tpu else device)
        return found

    options._resolve_auto_acc_dtype = staticmethod(resolve)


class _Belongings:
    """What a swap of tensors takes from a parameter and a move of its data would have left."""

    _HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self._parameter = parameter
        self._class = type(parameter)
        self._attributes = dict(vars(parameter))
        with private.DisableTorchFunctionSubclass():
            self._hooks = {n: getattr(parameter, n) for n in self._HOOKS}

    def give_back(self) -> None:
        """Make the parameter again one of its class, with its attributes and its hooks."""
        parameter = self._parameter
        with private.DisableTorchFunctionSubclass():
            for name, hooks in self._hooks.items():
                if hooks is not None:
                    setattr(parameter, name, hooks)
        vars(parameter).update(self._attributes)
        if type(parameter) is not self._class:  # a lazy module's parameter without a shape
            parameter.__class__ = self._class


def _crosses(module: torch.nn.Module, fn: Callable[[torch.Tensor], Any]) -> bool:
    """Tell whether fn moves the module's tensors from or to device tpu, by an empty one of them."""
    first = next(chain(module.parameters(), module.buffers()), None)
    if first is None or first.device.type == "meta":
        return False
    with torch.no_grad():
        moved = fn(torch.empty(0, dtype=first.dtype, device=first.device))
    devices = {first.device.type, moved.device.type}
    return len(devices) == 2 and "tpu" in devices
