"""Random ops: arguments checked by the CPU's own kernels on no elements, before a key is drawn.

The checks are of values (a deviation below 0, bounds that a dtype cannot hold), which are no part
of a signature: they are made at each call, and remembered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchtpu import dtypes
from torchtpu.eager import dispatch
from torchtpu.eager.dispatch import full_name
from torchtpu.eager.missing_meta import CORRECTED
from torchtpu.eager.schema import arguments, overload, variants
from torchtpu.eager.view_ops import kernel
from torchtpu.lowerings.random import largest_exact
from torchtpu.private import torch as private

CHECKED = (
    "aten::uniform",
    "aten::normal_functional",
    "aten::normal.Tensor_float",
    "aten::normal.float_Tensor",
    "aten::normal.Tensor_Tensor",
    "aten::log_normal",
    "aten::exponential",
    "aten::cauchy",
    "aten::geometric",
    "aten::bernoulli.p",
    "aten::random.from",
    "aten::random.to",
    "aten::multinomial",
    "aten::randperm",
    "aten::randperm.generator",
)
_NO_PART = frozenset({"generator", "device", "layout", "pin_memory"})
_unused = private.Generator("cpu")  # the checks draw nothing


def _derived(name: str) -> Callable[..., Any]:
    return dispatch.derived[name]


def _enter(op: Any) -> None:
    name = full_name(op)
    names = [a.name for a in arguments(op._schema)]
    takes_generator = "generator" in names

    @kernel(name)
    def checked(*args: Any, **kwargs: Any) -> Any:
        bound = dict(zip(names, args, strict=False)) | kwargs
        given = tuple((n, _summary(v)) for n, v in bound.items() if n not in _NO_PART)
        if "n" in bound:
            given = (*given, ("n", _short(bound["n"], bound.get("dtype"))))
        _check(op, takes_generator, given, tuple(type(v) for _, v in given))
        return _derived(name)(*args, **kwargs)


def _summary(value: Any) -> Any:
    """A tensor's dtype, rank and columns (multinomial's categories); other values themselves."""
    if not isinstance(value, torch.Tensor):
        return value
    return _NoElements((value.dtype, value.dim(), value.shape[-1] if value.dim() else 0))


class _NoElements(tuple[torch.dtype, int, int]):
    """A tensor of a dtype, a rank and a number of columns."""

    def on_cpu(self, op: Any) -> torch.Tensor:
        dtype, rank, columns = self
        weights = op._schema.name == "aten::multinomial" and rank in (1, 2)
        shape = (0, columns) if weights else (0,) * rank
        return torch.zeros(shape, dtype=dtype, device="cpu")


def _short(n: int, dtype: torch.dtype | None) -> int:
    """A length of 0 in place of one that the dtype can number."""
    return n if n < 0 or n > largest_exact(dtypes.to_numpy(dtype or torch.int64)) else 0


@functools.lru_cache(maxsize=4096)
def _check(op: Any, generator: bool, given: Any, _types: tuple[type, ...]) -> None:
    """Call an overload on CPU tensors of no elements; raises what it raises."""
    known = {n: v.on_cpu(op) if isinstance(v, _NoElements) else v for n, v in given}
    op(**known, **({"generator": _unused} if generator else {}))


for _name in CHECKED:
    _functional = overload(_name)
    _in_place, _out = variants(_functional)
    for _op in (_functional, *_in_place, *_out):
        _enter(_op)


@kernel("aten::bernoulli_.Tensor")
def bernoulli_(
    self: torch.Tensor, p: torch.Tensor, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """1 with the probability in p, which broadcasts to self."""
    if p.shape != self.shape:
        torch.empty(p.shape, device="meta").expand(self.shape)
    drawn: torch.Tensor = _derived("aten::bernoulli_.Tensor")(self, p, generator=generator)
    return drawn


@kernel("aten::binomial")
def binomial(
    count: torch.Tensor, prob: torch.Tensor, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Successes in `count` trials of probability `prob`, of their common shape."""
    _check_binomial(count.dtype, prob.dtype)
    if count.shape != prob.shape:
        count, prob = torch.broadcast_tensors(count, prob)
    drawn: torch.Tensor = _derived("aten::binomial")(count.contiguous(), prob, generator)
    return drawn


@functools.cache
def _check_binomial(count: torch.dtype, prob: torch.dtype) -> None:
    counts, probabilities = (torch.empty(0, dtype=d, device="cpu") for d in (count, prob))
    torch.binomial(counts, probabilities, generator=_unused)


def _native_dropout(
    input: torch.Tensor,  # noqa: A002  # the schema's name
    p: float,
    train: bool | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Like the input, and a mask; torch's own cannot scale complex numbers."""
    if not input.is_complex():
        made: tuple[torch.Tensor, torch.Tensor] = _dropout(input, p, train)
        return made
    return torch.empty_like(input), torch.empty_like(input, dtype=torch.bool)


_dropout: Any = torch.ops.aten.native_dropout.default
CORRECTED[_dropout] = _native_dropout
