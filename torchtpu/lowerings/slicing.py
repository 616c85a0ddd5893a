"""Writes of slices into a copy, and the gradients of views, which are writes into zeros."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering

Dims = tuple[int, ...]


def _slice(dim: int, rank: int, start: int | None, end: int | None, step: int) -> tuple[slice, ...]:
    return (*(slice(None),) * (dim % rank), slice(start, end, step))


def _write_diagonal(base: Array, value: Array, offset: int, dim1: int, dim2: int) -> Array:
    """base with value, whose last dim is the diagonal, on a diagonal of two dims."""
    moved = jnp.moveaxis(base, (dim1, dim2), (0, 1))
    row, column = max(-offset, 0), max(offset, 0)
    place = jnp.arange(value.shape[-1])
    moved = moved.at[place + row, place + column].set(jnp.moveaxis(value, -1, 0))
    return jnp.moveaxis(moved, (0, 1), (dim1, dim2))


@lowering("aten::select_backward")
def select_backward(grad_output: Array, input_sizes: Dims, dim: int, index: int) -> Array:
    """Zeros with the gradient at one index of dim."""
    base = jnp.zeros(input_sizes, grad_output.dtype)
    return base.at[(*(slice(None),) * (dim % base.ndim), index)].set(grad_output)


@lowering("aten::slice_backward")
def slice_backward(
    grad_output: Array, input_sizes: Dims, dim: int, start: int, end: int, step: int
) -> Array:
    """Zeros with the gradient in a slice: pad with holes."""
    rank, dim, size = len(input_sizes), dim % len(input_sizes), input_sizes[dim]
    start, _, _ = slice(start, end).indices(size)
    count = grad_output.shape[dim]
    pads = [(0, 0, 0)] * rank
    if count:
        pads[dim] = (start, size - start - (count - 1) * step - 1, step - 1)
    else:
        pads[dim] = (size, 0, 0)
    return lax.pad(grad_output, jnp.zeros((), grad_output.dtype), pads)


@lowering("aten::diagonal_backward")
def diagonal_backward(
    grad_output: Array, input_sizes: Dims, offset: int, dim1: int, dim2: int
) -> Array:
    """Zeros with the gradient on a diagonal."""
    base = jnp.zeros(input_sizes, grad_output.dtype)
    return _write_diagonal(base, grad_output, offset, dim1, dim2)


@lowering("aten::unfold_backward")
def unfold_backward(grad_in: Array, input_sizes: Dims, dim: int, size: int, step: int) -> Array:
    """Sums the gradients of overlapping windows: [.., windows, .., size] -> [.., n, ..]."""
    if not input_sizes:
        return grad_in.reshape(())
    dim = dim % len(input_sizes)
    moved = jnp.moveaxis(grad_in, dim, -2)  # [.., windows, size]
    windows = moved.shape[-2]
    places = (jnp.arange(windows)[:, None] * step + jnp.arange(size)).reshape(-1)
    lead = moved.shape[:-2]
    base = jnp.zeros((*lead, input_sizes[dim]), grad_in.dtype)
    base = base.at[..., places].add(moved.reshape(*lead, windows * size))
    return jnp.moveaxis(base, -1, dim)


@lowering("aten::select_scatter")
def select_scatter(self: Array, src: Array, dim: int, index: int) -> Array:
    """self with src at one index of dim."""
    return self.at[(*(slice(None),) * (dim % self.ndim), index)].set(src)


@lowering("aten::slice_scatter")
def slice_scatter(
    self: Array,
    src: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    """self with src in a slice of dim."""
    return self.at[_slice(dim, self.ndim, start, end, step)].set(src)


@lowering("aten::diagonal_scatter")
def diagonal_scatter(
    self: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Array:
    """self with src on a diagonal."""
    return _write_diagonal(self, src, offset, dim1, dim2)
