"""Collectives of a program that is being captured: they become a part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtpu.distributed import programs
from torchtpu.distributed.operands import Tensors, stored
from torchtpu.eager import modes
from torchtpu.eager.call import Call
from torchtpu.eager.capture import Capture
from torchtpu.storage import Buffer, Layout
from torchtpu.tensor import factory
from torchtpu.views import contiguous_strides


def is_on() -> bool:
    """Tell whether this thread captures."""
    return type(modes.current) is Capture and modes.current.is_here()


def add(
    name: str,
    fn: Callable[..., Any],
    inputs: Tensors,
    outputs: Tensors,
    ranks: tuple[int, ...],
    **static: Any,
) -> None:
    """Add the collective `fn` of programs.py; its results become the outputs' values."""
    static["shapes"] = tuple([tuple(t.shape) for t in outputs])
    held = [stored(tensor) for tensor in inputs]
    arrays = [b.array if b.array is not None else b.value() for b in held]
    types = [buffer.layout.type for buffer in held]
    made = [_made(tensor) for tensor in outputs]
    call = Call(
        name,
        programs.together(name, fn, types, len(outputs), ranks, (), **static),
        reads=None,
        writes=(),
        number_types=(),
        key=False,
        factories=(),
        returned=None,
    )
    modes.current.launch(call, arrays, made)
    for output, buffer in zip(outputs, made, strict=True):
        shape = tuple(output.shape)
        make = factory(shape, contiguous_strides(shape), output.dtype)
        output.detach().copy_(make(buffer))


def _made(like: torch.Tensor) -> Buffer:
    return Buffer(Layout.of(tuple(like.shape), like.dtype))
