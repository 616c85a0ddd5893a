"""What a hand-made call of an overload is, and the tensors it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments on the CPU; `reference` is called there in the overload's place.

    `prepare` makes of the arguments, on whichever device they are, those of the overload.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    random: bool = False
    prepare: Callable[..., tuple[Any, ...]] | None = None

    @property
    def dtype(self) -> str:
        """Name of the first tensor's dtype; "" where there is none."""
        leaves = tree_leaves((self.args, self.kwargs))
        found = [t.dtype for t in leaves if isinstance(t, torch.Tensor)]
        return str(found[0]).removeprefix("torch.") if found else ""


def values(*shape: int, dtype: torch.dtype = torch.float32, low: float = -2.0) -> torch.Tensor:
    """Numbers from low to 2 in an order of their own; whole ones in integer dtypes."""
    count = torch.Size(shape).numel()
    ordered = torch.linspace(low, 2, max(count, 1))[:count]
    mixed = ordered[(torch.arange(count) * 7) % max(count, 1)] if count % 7 else ordered
    return (mixed.reshape(shape) * (1 if dtype.is_floating_point else 3)).to(dtype)


def ints(*numbers: int) -> torch.Tensor:
    """An int64 tensor."""
    return torch.tensor(numbers)


def call(
    *args: Any, reference: Any = None, random: bool = False, prepare: Any = None, **kwargs: Any
) -> Call:
    """A call with these arguments."""
    return Call(args=args, kwargs=kwargs, reference=reference, random=random, prepare=prepare)


def out(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor to be written."""
    return torch.empty(shape, dtype=dtype)
