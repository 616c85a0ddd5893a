"""Forward derivatives that torch names as ops of their own: the gated linear unit's."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from torchtpu.lowerings.registry import Array, lowering


def _glu_backward(grad: Array, x: Array, dim: int) -> Array:
    value, gate = jnp.split(x, 2, axis=dim)
    open_ = jax.nn.sigmoid(gate)
    return jnp.concatenate([grad * open_, grad * value * open_ * (1 - open_)], axis=dim)


@lowering("aten::glu_jvp", compute="output")
def glu_jvp(glu: Array, x: Array, dx: Array, dim: int) -> Array:
    """The tangent of glu(x) for a tangent of x."""
    _, gate = jnp.split(x, 2, axis=dim)
    d_value, d_gate = jnp.split(dx, 2, axis=dim)
    open_ = jax.nn.sigmoid(gate)
    return d_value * open_ + glu * (1 - open_) * d_gate


@lowering("aten::glu_backward_jvp", compute="output")
def glu_backward_jvp(
    grad_x: Array, grad_glu: Array, x: Array, dgrad_glu: Array, dx: Array, dim: int
) -> Array:
    """The tangent of glu's gradient for tangents of the gradient of its result and of x."""
    backward = partial(_glu_backward, dim=dim)
    return jax.jvp(backward, (grad_glu, x), (dgrad_glu, dx))[1]
