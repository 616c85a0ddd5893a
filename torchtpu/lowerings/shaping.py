"""Joining, repeating, reversing and rearranging, and bands and diagonals of matrices."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, dims_of, lowering

Dims = tuple[int, ...]


@lowering("aten::cat", compute="output", opmath=False)
def cat(tensors: tuple[Array, ...], dim: int = 0) -> Array:
    """Tensors one after the other; those of shape [0] count as nothing."""
    kept = [t for t in tensors if t.shape != (0,)]
    return jnp.concatenate(kept, axis=dim) if kept else tensors[0]


@lowering("aten::stack", compute="output", opmath=False)
def stack(tensors: tuple[Array, ...], dim: int = 0) -> Array:
    """Tensors along a new dim."""
    return jnp.stack(tensors, axis=dim)


@lowering("aten::repeat")
def repeat(self: Array, repeats: Dims) -> Array:
    """self tiled; more repeats than dims make new leading dims."""
    return jnp.tile(self, repeats)


@lowering("aten::flip")
def flip(self: Array, dims: Dims) -> Array:
    """Dims in reverse order."""
    return jnp.flip(self, dims_of(dims, self.ndim) if dims and self.ndim else ())


@lowering("aten::roll")
def roll(self: Array, shifts: Dims, dims: Dims = ()) -> Array:
    """Elements moved along dims, those that fall out come in at the other end."""
    if self.size == 0:
        return self
    if not dims:
        return jnp.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    return jnp.roll(self, shifts, dims)


@lowering("aten::tril")
def tril(self: Array, diagonal: int = 0) -> Array:
    """The part on and below a diagonal of the last two dims."""
    return _band(self, lambda row, column: column - row <= diagonal)


@lowering("aten::triu")
def triu(self: Array, diagonal: int = 0) -> Array:
    """The part on and above a diagonal of the last two dims."""
    return _band(self, lambda row, column: column - row >= diagonal)


def _band(x: Array, kept: Callable[[Array, Array], Array]) -> Array:
    plane = x.shape[-2:]
    row, column = (lax.broadcasted_iota(jnp.int64, plane, d) for d in (0, 1))
    return jnp.where(kept(row, column), x, jnp.zeros((), x.dtype))


@lowering("aten::diag_embed")
def diag_embed(self: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """The last dim as a diagonal of two new dims."""
    size = self.shape[-1] + abs(offset)
    place = jnp.arange(self.shape[-1])
    result = jnp.zeros((*self.shape[:-1], size, size), self.dtype)
    result = result.at[..., place + max(-offset, 0), place + max(offset, 0)].set(self)
    rank = result.ndim
    return jnp.moveaxis(result, (rank - 2, rank - 1), (dim1 % rank, dim2 % rank))


@lowering("aten::trace")
def trace(self: Array) -> Array:
    """The sum of the diagonal."""
    half = self.dtype in (jnp.bfloat16, jnp.float16)
    return jnp.trace(self.astype(jnp.float32) if half else self)


@lowering("aten::channel_shuffle")
def channel_shuffle(self: Array, groups: int) -> Array:
    """[N, G * K, *] -> [N, K * G, *]."""
    batch, channels, *rest = self.shape
    split = self.reshape(batch, groups, channels // groups, *rest)
    return jnp.swapaxes(split, 1, 2).reshape(self.shape)


@lowering("aten::pixel_shuffle")
def pixel_shuffle(self: Array, upscale_factor: int) -> Array:
    """[*, C * r^2, H, W] -> [*, C, H * r, W * r]."""
    r, (*lead, channels, height, width) = upscale_factor, self.shape
    split = self.reshape(*lead, channels // r**2, r, r, height, width)
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)  # [*, C, H, r, W, r]
    return split.transpose(order).reshape(*lead, channels // r**2, height * r, width * r)


@lowering("aten::pixel_unshuffle")
def pixel_unshuffle(self: Array, downscale_factor: int) -> Array:
    """[*, C, H * r, W * r] -> [*, C * r^2, H, W]."""
    r, (*lead, channels, height, width) = downscale_factor, self.shape
    split = self.reshape(*lead, channels, height // r, r, width // r, r)
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)  # [*, C, r, r, H, W]
    return split.transpose(order).reshape(*lead, channels * r**2, height // r, width // r)
