"""Distances between rows: cdist, pdist and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu.lowerings.registry import Array, lowering

_NORMS = {"p": (0, 1, 2, np.inf)}
_GRAD = {"grad_output": "grad"}  # since torch 2.14


def _norm(difference: Array, p: Array | float) -> Array:
    """The p-norm of the last dim."""
    size = jnp.abs(difference)
    if isinstance(p, jax.Array):
        return jnp.sum(size**p, -1) ** (1 / p)
    if p == 0:
        return jnp.sum(size != 0, -1).astype(difference.dtype)
    if p == np.inf:
        return jnp.max(size, -1, initial=0)
    return jnp.sum(size, -1) if p == 1 else jnp.sqrt(jnp.sum(size * size, -1))


def _slope(difference: Array, distance: Array, p: Array | float) -> Array:
    """d distance / d difference; 0 where the distance is 0."""
    distance, size = distance[..., None], jnp.abs(difference)
    sign = jnp.sign(difference)
    if not isinstance(p, jax.Array):
        if p == 0:
            return jnp.zeros_like(difference)
        if p == 1:
            return sign
        if p == np.inf:
            return jnp.where(size == distance, sign, 0)
    safe = jnp.where(distance == 0, 1, distance)
    power = jnp.where(size == 0, 0, jnp.where(size == 0, 1, size) ** (p - 1))
    return jnp.where(distance == 0, 0, sign * power / safe ** (p - 1))


@lowering("aten::_cdist_forward", compute="output", constants=_NORMS)
def cdist_forward(x1: Array, x2: Array, p: Array | float, compute_mode: int | None) -> Array:
    """[*, P, M] and [*, R, M] -> the p-norms of all differences [*, P, R]."""
    return _norm(x1[..., :, None, :] - x2[..., None, :, :], p)


@lowering("aten::_cdist_backward", aliases=_GRAD, compute="output", constants=_NORMS)
def cdist_backward(grad: Array, x1: Array, x2: Array, p: Array | float, cdist: Array) -> Array:
    """The gradient of x1 in the batch shape of both: autograd sums it to that of x1."""
    slope = _slope(x1[..., :, None, :] - x2[..., None, :, :], cdist, p)
    return jnp.sum(grad[..., None] * slope, -2) if slope.size else jnp.zeros_like(x1)


@lowering("aten::_pdist_forward", compute="output", constants=_NORMS)
def pdist_forward(self: Array, p: Array | float = 2) -> Array:
    """[N, M] -> the distances of all pairs of rows, [N (N - 1) / 2]."""
    first, second = jnp.triu_indices(self.shape[0], 1)
    return _norm(self[first] - self[second], p)


@lowering("aten::_pdist_backward", aliases=_GRAD, compute="output", constants=_NORMS)
def pdist_backward(grad: Array, self: Array, p: Array | float, pdist: Array) -> Array:
    """The gradient of pdist."""
    first, second = jnp.triu_indices(self.shape[0], 1)
    slope = grad[:, None] * _slope(self[first] - self[second], pdist, p)
    return jnp.zeros_like(self).at[first].add(slope).at[second].add(-slope)
