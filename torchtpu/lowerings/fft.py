"""Discrete Fourier transforms over some dims: stablehlo.fft, scaled as torch.fft asks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp

from torchtpu.lowerings.registry import Array, lowering


@lowering("aten::_fft_r2c")
def fft_r2c(self: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    """Real to complex; onesided keeps the first n // 2 + 1 values of the last of the dims."""
    transform = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return _scaled(transform(self, axes=tuple(dim)), self, dim, normalization)


@lowering("aten::_fft_c2r")
def fft_c2r(self: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """Complex (onesided in the last of the dims, of size last_dim_size when whole) to real."""
    sizes = [self.shape[d] for d in dim[:-1]] + [last_dim_size]
    result = jnp.fft.irfftn(self, s=sizes, axes=tuple(dim), norm="forward")
    return _scaled(result, result, dim, normalization)


@lowering("aten::_fft_c2c")
def fft_c2c(self: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    """Complex to complex, forward or inverse."""
    if forward:
        result = jnp.fft.fftn(self, axes=tuple(dim))
    else:
        result = jnp.fft.ifftn(self, axes=tuple(dim), norm="forward")
    return _scaled(result, self, dim, normalization)


def _scaled(result: Array, signal: Array, dim: Sequence[int], normalization: int) -> Array:
    """torch's fft_norm_mode: 0 as it is, 1 by the root of the number of points, 2 by the number."""
    points = math.prod(signal.shape[d] for d in dim)
    if normalization == 0:
        return result
    return result / (math.sqrt(points) if normalization == 1 else points)
