"""The private ops behind collectives: functional, one per StableHLO op, on tensors of the device.

`group` lists the global ranks of the members, `world` is the number of all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

_library = torch.library.Library("torchtpu", "FRAGMENT")


def _like(given: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(given, memory_format=torch.contiguous_format)


def _gathered(given: torch.Tensor, group: Sequence[int], _world: int) -> torch.Tensor:
    return given.new_empty((given.shape[0] * len(group), *given.shape[1:]))


def _scattered(
    given: torch.Tensor, _reduce: str, group: Sequence[int], _world: int
) -> torch.Tensor:
    return given.new_empty((given.shape[0] // len(group), *given.shape[1:]))


_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "all_reduce(Tensor input, str reduce, int[] group, int world) -> Tensor": _like,
    "all_gather(Tensor input, int[] group, int world) -> Tensor": _gathered,
    "reduce_scatter(Tensor input, str reduce, int[] group, int world) -> Tensor": _scattered,
    "all_to_all(Tensor input, int[] group, int world) -> Tensor": _like,
    "permute(Tensor input, int[] pairs, int world) -> Tensor": _like,
}
for _schema, _meta in _OPS.items():
    _name, _, _rest = _schema.partition("(")
    _library.define(_schema)
    _library.define(f"{_name}.out({_rest.replace(') ->', ', *, Tensor(a!) out) ->')}(a!)")
    _library.impl(_name, _meta, "Meta")


def launch(name: str, out: torch.Tensor, given: torch.Tensor, *options: Any) -> None:
    """Run a collective along dim 0 of the flattened given; its result goes into `out`.

    name: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or "permute".
    """
    flat, whole = given.detach().reshape(-1), out.detach()
    if flat.numel() != whole.numel() and flat.untyped_storage() is whole.untyped_storage():
        flat = flat.clone()  # FSDP gathers in place
    if whole.is_contiguous():
        _kernel(f"{name}.out")(flat, *options, out=whole.view(-1))
    else:
        whole.copy_(_kernel(name)(flat, *options).view(whole.shape))


@cache
def _kernel(name: str) -> Callable[..., torch.Tensor]:
    from torchtpu.eager import dispatch

    dispatch.install()
    made: Callable[..., torch.Tensor] = dispatch.derived[f"torchtpu::{name}"]
    return made
