"""The op that says how a value lies on the mesh of the process; its gradient lies so too."""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.targets import Spec

_NAME = "torchtpu::sharding_constraint"
_library = torch.library.Library("torchtpu", "FRAGMENT")
_library.define("sharding_constraint(Tensor input, str spec) -> Tensor")


def spelled(spec: Spec) -> str:
    """Return a spec as the op takes it: "data,|tensor," (axes end in a comma, dims in a bar)."""
    return "|".join(["".join([f"{axis}," for axis in axes]) for axes in spec])  # read by Dynamo


def constraint(tensor: torch.Tensor, spec: str) -> torch.Tensor:
    """Return the values of a tensor, lying as a spelled spec says."""
    made: torch.Tensor = torch.ops.torchtpu.sharding_constraint.default(tensor, spec)
    return made


def _meta(given: torch.Tensor, spec: str) -> torch.Tensor:
    del spec
    return torch.empty_like(given)


def _kernel(given: torch.Tensor, spec: str) -> torch.Tensor:
    from torchtpu.eager import dispatch

    dispatch.install()
    made: torch.Tensor = dispatch.derived[_NAME](given, spec)
    return made


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    del output
    ctx.spec = inputs[1]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return constraint(grad, ctx.spec), None


_library.impl("sharding_constraint", _meta, "Meta")
_library.impl("sharding_constraint", _kernel, "PrivateUse1")
torch.library.register_autograd(_NAME, _backward, setup_context=_setup, lib=_library)
