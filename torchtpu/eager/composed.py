"""How an op enters that is computed by calling others: its kernel, and those of its out= forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from torchtpu.eager.schema import arguments, overload, variants
from torchtpu.eager.view_ops import KERNELS

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def composed(*names: str) -> Callable[[_Kernel], _Kernel]:
    """Enter a function under names of overloads ("aten::cudnn_convolution")."""

    def enter(fn: _Kernel) -> _Kernel:
        for name in names:
            KERNELS[name] = fn
            functional = overload(name)
            for variant in variants(functional)[1]:
                which = f".{variant._overloadname}" if variant._overloadname != "default" else ""
                KERNELS[f"{variant._schema.name}{which}"] = partial(_out, variant, functional)
        return fn

    return enter


def _out(variant: Any, functional: Any, *args: Any, **kwargs: Any) -> Any:
    """Write the results of the functional overload into the out= arguments of a variant."""
    known = arguments(variant._schema)
    bound = {a.name: v for a, v in zip(known, args, strict=False)} | kwargs
    written = [bound.pop(a.name) for a in known if a.is_out]
    results = functional(**bound)
    fill(written, results if isinstance(results, tuple) else (results,))
    return written[0] if len(written) == 1 else tuple(written)


def fill(targets: list[torch.Tensor], results: tuple[torch.Tensor, ...]) -> None:
    """Copy results into out= tensors, which take their shapes."""
    for target, result in zip(targets, results, strict=True):
        if target.shape != result.shape:
            torch.ops.aten._resize_output_.default(target, list(result.shape), target.device)
        target.copy_(result)
