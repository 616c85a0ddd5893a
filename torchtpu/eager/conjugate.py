"""Copies that settle lazy conjugation and negation, so that no other op meets those bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtpu.eager.view_ops import kernel


def _derived(name: str) -> Callable[..., Any]:
    from torchtpu.eager import dispatch

    return dispatch.derived[name]


def _settled(self: torch.Tensor, conj: bool, neg: bool) -> torch.Tensor:
    """The stored values, conjugated and negated as asked, in a new tensor where either is."""
    if conj:
        self = _derived("aten::_conj_physical")(self)
    return _derived("aten::neg")(self) if neg else self


@kernel("aten::copy_")
def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """self[...] = src, between any two devices and dtypes, with broadcasting."""
    conj, neg = src.is_conj() != self.is_conj(), src.is_neg() != self.is_neg()
    if self.device.type == "tpu" and src.device.type == "tpu":
        _derived("aten::copy_")(self, _settled(src, conj, neg) if conj or neg else src)
        return self
    if src.device.type == "tpu" and (src.is_conj() or src.is_neg()):
        src = _settled(src, src.is_conj(), src.is_neg())
    if self.device.type == "tpu" and (self.is_conj() or self.is_neg()):
        src = src.to(self.device)
        _derived("aten::copy_")(self, _settled(src, self.is_conj(), self.is_neg()))
        return self
    torch.ops.aten._copy_from.default(src, self, non_blocking)
    return self


@kernel("aten::clone")
def clone(self: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """A copy with the values that the tensor stands for."""
    if self.is_conj() or self.is_neg():
        self = _settled(self, self.is_conj(), self.is_neg())
    copied: torch.Tensor = (
        _derived("aten::clone")(self)
        if memory_format is None
        else _derived("aten::clone")(self, memory_format=memory_format)
    )
    return copied


@kernel("aten::_conj_physical")
def conj_physical(self: torch.Tensor) -> torch.Tensor:
    """The conjugate as stored values; of a lazily conjugated tensor its stored values."""
    name = "aten::clone" if self.is_conj() else "aten::_conj_physical"
    stored: torch.Tensor = _derived(name)(self)
    return stored
