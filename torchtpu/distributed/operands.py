"""The tensors of a collective: their values when it is asked for, and where its results go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchtpu import executor, views
from torchtpu.errors import TpuError
from torchtpu.program import ArrayType, Node, Program, Ref
from torchtpu.storage import Buffer, Layout, buffer_of, launch_lock, mark_lost
from torchtpu.tensor import factory

Tensors = Sequence[torch.Tensor]


def on_device(tensors: Tensors) -> bool:
    """Tell whether tensors are on tpu, not on the CPU; TpuError where they are here and there."""
    if all(t.is_cpu for t in tensors):
        return False
    others = {t.device.type for t in tensors if t.device.type != "tpu"}
    if others:
        raise TpuError(
            f"[tpu_dist] expected tensors on tpu, or all on cpu, got some on {sorted(others)}"
        )
    return True


def described(layouts: Sequence[Layout]) -> str:
    """Say what operands are, to people and to other ranks."""
    texts = [
        f"{str(layout.dtype).removeprefix('torch.')}[{math.prod(layout.shape)}]"
        for layout in layouts[:3]
    ]
    return ", ".join(texts) + (f" and {len(layouts) - 3} more" if len(layouts) > 3 else "")


def _is_whole(tensor: torch.Tensor, buffer: Buffer) -> bool:
    """Tell whether a tensor's elements in order are all of its memory."""
    return (
        tensor.is_contiguous()
        and tensor.numel() * tensor.itemsize == buffer.layout.nbytes
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def stored(tensor: torch.Tensor) -> Buffer:
    """Return a buffer that holds a tensor's elements in order: its own, or a copy's."""
    buffer = buffer_of(tensor.untyped_storage())
    if _is_whole(tensor, buffer) and buffer.layout.dtype == tensor.dtype:
        return buffer
    plain = tensor.detach().resolve_conj().resolve_neg()
    return buffer_of(plain.clone(memory_format=torch.contiguous_format).untyped_storage())


class Operand:
    """A tensor's value as it is now, which nobody may overwrite in place until it is used."""

    __slots__ = ("_claim", "array", "buffer", "layout")

    def __init__(self, tensor: torch.Tensor) -> None:
        """Take the value; `launch_lock` is held."""
        self.buffer = buffer = stored(tensor)
        self.array = buffer.value()
        self.layout = buffer.layout
        self._claim: object = None if buffer.shared else object()
        buffer.shared = self._claim or True

    def release(self) -> bool:
        """Give the claim up; tell whether the value is this operand's alone and its buffer's."""
        buffer = self.buffer
        if self._claim is None or buffer.shared is not self._claim:
            return False  # somebody else holds the value too
        buffer.shared = False
        return buffer.array is self.array

    def overwritable(self) -> Any:
        """Return the value for a program that may take over its memory, a copy if need be."""
        return self.array if self.release() else _copied(self.layout, self.array)


def operands(tensors: Tensors) -> list[Operand]:
    """Take the values of tensors."""
    with launch_lock:
        return [Operand(t) for t in tensors]


def room(tensors: Tensors, inputs: Sequence[Operand]) -> list[Any]:
    """Return arrays like tensors, whose memory a program may take over for their new values."""
    read = {id(operand.buffer) for operand in inputs}
    made = []
    for tensor in tensors:
        buffer = buffer_of(tensor.untyped_storage())
        layout = Layout.of(tuple(tensor.shape), tensor.dtype)
        is_free = buffer.layout is layout and not buffer.shared and id(buffer) not in read
        read.add(id(buffer))
        made.append((buffer if is_free and _is_whole(tensor, buffer) else Buffer(layout)).value())
    return made


def keep(tensors: Tensors, results: Sequence[Any]) -> None:
    """Make results the tensors' values; each result has its tensor's shape."""
    with launch_lock:
        for tensor, array in zip(tensors, results, strict=True):
            buffer = buffer_of(tensor.untyped_storage())
            shape = tuple(tensor.shape)
            layout = Layout.of(shape, tensor.dtype)
            if _is_whole(tensor, buffer):
                if buffer.layout is not layout:
                    buffer.layout, buffer.natural = layout, None
                buffer.array, buffer.shared, buffer.freed = array, False, ""
            else:
                make = factory(shape, views.contiguous_strides(shape), tensor.dtype)
                tensor.detach().copy_(make(Buffer(make.layout, array)))


def lose(tensors: Tensors) -> None:
    """Mark the memory of tensors whose program failed, where that had taken it over."""
    mark_lost(buffer_of(t.untyped_storage()) for t in tensors)


def _copied(layout: Layout, array: Any) -> Any:
    node = Node("aten::clone", _copy, (Ref(0),), (), 1)
    program = Program((ArrayType(layout.shape, layout.type.dtype),), (node,), (1,))
    return executor.current().executable(program).run([array])[0]


def _copy(array: Any) -> Any:
    import jax.numpy as jnp

    return jnp.copy(array)


def padded(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """Return a tensor's elements, and zeros behind them."""
    flat = tensor.detach().reshape(-1)
    return torch.nn.functional.pad(flat, (0, elements - flat.numel()))


def cut(output: torch.Tensor, kept: torch.Tensor) -> None:
    """Give a tensor the first elements of a longer one."""
    output.detach().copy_(kept[: output.numel()].view(output.shape))
