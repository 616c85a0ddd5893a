"""Constant, reflection and replication pads of the last dims, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, convert, lowering

Dims = tuple[int, ...]


@lowering("aten::constant_pad_nd")
def constant_pad_nd(self: Array, pad: Dims, value: Array | float = 0) -> Array:
    """Pads from the last dim on; negative pads crop."""
    pads = [(0, 0, 0)] * self.ndim
    for d, (low, high) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        pads[self.ndim - 1 - d] = (low, high, 0)
    return lax.pad(self, convert(jnp.asarray(value), self.dtype), pads)


def _reflected(x: Array, axis: int, low: int, high: int) -> Array:
    size = x.shape[axis]
    before = lax.rev(lax.slice_in_dim(x, 1, 1 + max(low, 0), axis=axis), (axis,))
    after = lax.rev(lax.slice_in_dim(x, size - 1 - max(high, 0), size - 1, axis=axis), (axis,))
    return _joined(x, axis, before, after, low, high)


def _replicated(x: Array, axis: int, low: int, high: int) -> Array:
    size = x.shape[axis]
    edge = [lax.slice_in_dim(x, i, i + 1, axis=axis) for i in (0, size - 1)]
    before, after = (
        jnp.broadcast_to(e, (*e.shape[:axis], max(n, 0), *e.shape[axis + 1 :]))
        for e, n in zip(edge, (low, high), strict=True)
    )
    return _joined(x, axis, before, after, low, high)


def _joined(x: Array, axis: int, before: Array, after: Array, low: int, high: int) -> Array:
    size, crops = x.shape[axis], (max(-low, 0), max(-high, 0))
    start, stop = min(crops[0], size), max(size - crops[1], 0)
    whole = jnp.concatenate([before, lax.slice_in_dim(x, start, stop, axis=axis), after], axis)
    if max(crops) <= size:
        return whole
    excess = [max(crop - size, 0) for crop in crops]  # of the copies on the other side
    return lax.slice_in_dim(whole, excess[0], whole.shape[axis] - excess[1], axis=axis)


def _padded(x: Array, padding: Sequence[int], reflect: bool) -> Array:
    for d, (low, high) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        axis = x.ndim - 1 - d
        x = (_reflected if reflect else _replicated)(x, axis, low, high)
    return x


def _enter(rank: int, kind: str) -> None:
    reflect = kind == "reflection"

    def forward(self: Array, padding: Dims) -> Array:
        return _padded(self, padding, reflect)

    def backward(grad_output: Array, self: Array, padding: Dims) -> Array:
        back = jax.linear_transpose(lambda x: _padded(x, padding, reflect), self)
        (grad,) = back(grad_output)
        return grad

    lowering(f"aten::{kind}_pad{rank}d")(forward)
    lowering(f"aten::{kind}_pad{rank}d_backward", compute="output")(backward)


for _rank in (1, 2, 3):
    for _kind in ("reflection", "replication"):
        _enter(_rank, _kind)
