"""Layers of RNN, LSTM and GRU cells in both directions as one program: a scan over time each."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings import random
from torchtpu.lowerings.registry import Array, lowering

RELU, TANH, LSTM, GRU = range(4)
State = tuple[Array, ...]  # hidden, and the cell of LSTM


@dataclass(frozen=True, kw_only=True)
class Network:
    """What is the same for all layers; `batch_sizes` is () unless sequences are packed."""

    mode: int
    layers: int
    directions: int
    batch_first: bool
    batch_sizes: tuple[int, ...]

    def apart(self, x: Array) -> Array:
        """The input as [T, B, I]."""
        if not self.batch_sizes:
            return jnp.swapaxes(x, 0, 1) if self.batch_first else x
        place = np.minimum(self._places(), x.shape[0] - 1)
        return jnp.take(x, jnp.asarray(place), axis=0)

    def together(self, x: Array) -> Array:
        """[T, B, H] in the layout of the input."""
        if not self.batch_sizes:
            return jnp.swapaxes(x, 0, 1) if self.batch_first else x
        return x.reshape(-1, x.shape[2])[np.flatnonzero(self._active_steps())]

    def active(self) -> Array | None:
        """[T, B, 1]: whether a step is within its sequence; None where all are."""
        return jnp.asarray(self._active_steps())[..., None] if self.batch_sizes else None

    def _active_steps(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return np.arange(self.batch_sizes[0]) < np.asarray(self.batch_sizes)[:, None]

    def _places(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        starts = np.cumsum((0, *self.batch_sizes[:-1]))
        return starts[:, None] + np.arange(self.batch_sizes[0])


def _cell(mode: int, x: Array, h: Array, state: State) -> State:
    """One step from both products with their biases: [B, G] of the input and of the hidden."""
    if mode == GRU:
        (xr, xz, xn), (hr, hz, hn) = jnp.split(x, 3, -1), jnp.split(h, 3, -1)
        r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
        n = jnp.tanh(xn + r * hn)
        return (n + z * (state[0] - n),)
    if mode == LSTM:
        i, f, g, o = jnp.split(x + h, 4, -1)
        cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(cell), cell
    return (jnp.tanh(x + h) if mode == TANH else jax.nn.relu(x + h),)


def _layer(
    network: Network, x: Array, state: State, weights: tuple[Array, ...], reverse: bool
) -> tuple[State, Array]:
    """[T, B, I] through one cell in one direction: the last state, and the hidden of each step.

    weights: of the input and of the hidden, both biases or none, and LSTM's projection or none.
    """
    of_input, of_hidden, *rest = weights
    biases = rest[:2] if len(rest) >= 2 else (0, 0)
    project = rest[-1] if len(rest) % 2 else None
    products = x @ of_input.T + biases[0]
    active = network.active()

    def step(state: State, at: tuple[Array, Array | None]) -> tuple[State, Array]:
        product, on = at
        new = _cell(network.mode, product, state[0] @ of_hidden.T + biases[1], state)
        if project is not None:
            new = (new[0] @ project.T, *new[1:])
        if on is not None:
            new = tuple(jnp.where(on, n, s) for n, s in zip(new, state, strict=True))
        return new, new[0]

    return lax.scan(step, state, (products, active), reverse=reverse)


def run(
    network: Network,
    x: Array,
    hx: Array,
    cx: Array | None,
    weights: tuple[Array, ...],
    dropout: Array | None,
    halves: Array | None,
) -> tuple[Array, ...]:
    """Output, last hidden and, of LSTM, last cell; dropout between layers where `halves` is."""
    per_cell = len(weights) // (network.layers * network.directions)
    x = network.apart(x)
    keys: list[Array] = []
    if halves is not None:
        keys = random.split(lax.bitcast_convert_type(halves, jnp.uint32).reshape(4), network.layers)
    last: list[State] = []
    for layer in range(network.layers):
        if keys and layer and dropout is not None:
            kept = random.unit(keys[layer], x.shape, jnp.float32) >= dropout
            x = jnp.where(kept, x / (1 - jnp.asarray(dropout).astype(x.dtype)), 0)
        outputs = []
        for direction in range(network.directions):
            cell = layer * network.directions + direction
            state = (hx[cell],) if cx is None else (hx[cell], cx[cell])
            own = weights[cell * per_cell : (cell + 1) * per_cell]
            ended, hidden = _layer(network, x, state, own, reverse=bool(direction))
            last.append(ended)
            outputs.append(hidden)
        x = jnp.concatenate(outputs, -1)
    finals = (jnp.stack(parts) for parts in zip(*last, strict=True))
    return network.together(x), *finals


@lowering("torchtpu::recurrent_layers")
def recurrent_layers(
    input: Array,
    weight: tuple[Array, ...],
    hx: Array,
    cx: Array | None,
    mode: int,
    layers: int,
    batch_first: bool,
    bidirectional: bool,
    batch_sizes: tuple[int, ...],
    dropout: Array,
    halves: Array | None,
) -> tuple[Array, ...]:
    """Output, last hidden and last cell (empty unless LSTM)."""
    network = Network(
        mode=mode,
        layers=layers,
        directions=1 + bidirectional,
        batch_first=batch_first,
        batch_sizes=batch_sizes,
    )
    made = run(network, input, hx, cx, weight, dropout, halves)
    return made if len(made) == 3 else (*made, jnp.zeros((0,), hx.dtype))


@lowering("torchtpu::recurrent_layers_backward")
def recurrent_layers_backward(
    grad_output: Array | None,
    grad_hy: Array | None,
    grad_cy: Array | None,
    input: Array,
    weight: tuple[Array, ...],
    hx: Array,
    cx: Array | None,
    mode: int,
    layers: int,
    batch_first: bool,
    bidirectional: bool,
    batch_sizes: tuple[int, ...],
    dropout: Array,
    halves: Array | None,
) -> list[Array]:
    """Gradients of the input, the first hidden, the first cell of LSTM, and each weight."""
    network = Network(
        mode=mode,
        layers=layers,
        directions=1 + bidirectional,
        batch_first=batch_first,
        batch_sizes=batch_sizes,
    )
    states = (hx,) if cx is None else (hx, cx)

    def forward(x: Array, states: State, weights: tuple[Array, ...]) -> tuple[Array, ...]:
        cell = states[1] if len(states) == 2 else None
        return run(network, x, states[0], cell, weights, dropout, halves)

    made, back = jax.vjp(forward, input, states, weight)
    given = (grad_output, grad_hy, grad_cy)[: len(made)]
    seeds = (
        jnp.zeros_like(m) if g is None else g.astype(m.dtype)
        for g, m in zip(given, made, strict=True)
    )
    of_input, of_states, of_weights = back(tuple(seeds))
    return [of_input, *of_states, *of_weights]
