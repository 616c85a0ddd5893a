"""Cells of LSTM and GRU: what follows the two matrix products of a time step, as one program."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torchtpu.lowerings.registry import Array, lowering


def _biased(gates: Array, bias: Array | None) -> Array:
    return gates if bias is None else gates + bias


@lowering("aten::_thnn_fused_lstm_cell", compute="output")
def lstm_cell(
    input_gates: Array,
    hidden_gates: Array,
    cx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Gates [N, 4 H] in the order i, f, g, o -> h' and c' [N, H] and the activated gates."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cx + i * g
    return o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], axis=-1)


@lowering("aten::_thnn_fused_lstm_cell_backward_impl", compute="output")
def lstm_cell_backward(
    grad_hy: Array | None,
    grad_cy: Array | None,
    cx: Array,
    cy: Array,
    workspace: Array,
    has_bias: bool,
) -> tuple[Array, Array, Array | None]:
    """Gradients of the gates, of c, and of both biases."""
    i, f, g, o = jnp.split(workspace, 4, axis=-1)
    bent = jnp.tanh(cy)
    grad_hy = jnp.zeros_like(cx) if grad_hy is None else grad_hy
    grad_c = grad_hy * o * (1 - bent * bent)
    grad_c = grad_c if grad_cy is None else grad_c + grad_cy
    grad_gates = jnp.concatenate(
        [
            grad_c * g * i * (1 - i),
            grad_c * cx * f * (1 - f),
            grad_c * i * (1 - g * g),
            grad_hy * bent * o * (1 - o),
        ],
        axis=-1,
    )
    return grad_gates, grad_c * f, jnp.sum(grad_gates, 0) if has_bias else None


@lowering("aten::_thnn_fused_gru_cell", compute="output")
def gru_cell(
    input_gates: Array,
    hidden_gates: Array,
    hx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array]:
    """Gates [N, 3 H] in the order r, z, n -> h' [N, H] and what backward needs, [N, 5 H]."""
    ir, iz, new = jnp.split(_biased(input_gates, input_bias), 3, axis=-1)
    hr, hz, hn = jnp.split(_biased(hidden_gates, hidden_bias), 3, axis=-1)
    r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
    n = jnp.tanh(new + r * hn)
    return n + z * (hx - n), jnp.concatenate([r, z, n, hx, hn], axis=-1)


@lowering("aten::_thnn_fused_gru_cell_backward", compute="output")
def gru_cell_backward(
    grad_hy: Array, workspace: Array, has_bias: bool
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Gradients of both gates, of h, and of both biases."""
    r, z, n, hx, hn = jnp.split(workspace, 5, axis=-1)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_r = grad_n * hn * r * (1 - r)
    grad_input = jnp.concatenate([grad_r, grad_z, grad_n], axis=-1)
    grad_hidden = jnp.concatenate([grad_r, grad_z, grad_n * r], axis=-1)
    biases = (jnp.sum(grad_input, 0), jnp.sum(grad_hidden, 0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hy * z, *biases
