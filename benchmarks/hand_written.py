"""The models of models.py as a JAX engineer writes them: one jitted, donated training step.

Same mathematics and same initial weights; matrices are stored [in, out], images are NHWC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.models import CHANNELS, HEADS, LAYERS, WIDTH

Array = jax.Array
Tree = dict[str, Array]
Forward = Callable[[Tree, Tree, Array, bool], tuple[Array, Tree]]  # also returns the new state

BETA1, BETA2, EPSILON, DECAY = 0.9, 0.999, 1e-8, 0.01  # the defaults of torch.optim.AdamW
TABLES = ("words.weight", "positions.weight")
MOMENTUM = 0.1  # of batch norm's running statistics, as torch counts it


def _linear(p: Tree, name: str, x: Array) -> Array:
    y = x @ p[f"{name}.weight"]
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def _layer_norm(p: Tree, name: str, x: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _mlp(p: Tree, state: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
    del train
    for layer in range(7):
        x = jax.nn.gelu(_linear(p, str(2 * layer), x), approximate=False)
    return _linear(p, "14", x), state


def _block(p: Tree, name: str, x: Array) -> Array:
    batch, length, _ = x.shape
    qkv = _linear(p, f"{name}.qkv", _layer_norm(p, f"{name}.norm1", x))
    q, k, v = (
        t.reshape(batch, length, HEADS, WIDTH // HEADS) for t in jnp.split(qkv, 3, -1)
    )  # each [B, T, H, D]
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + _linear(p, f"{name}.proj", y.reshape(batch, length, WIDTH))
    up = jax.nn.gelu(_linear(p, f"{name}.up", _layer_norm(p, f"{name}.norm2", x)))
    return x + _linear(p, f"{name}.down", up)


def _gpt(p: Tree, state: Tree, tokens: Array, train: bool) -> tuple[Array, Tree]:
    del train
    x = p["words.weight"][tokens] + p["positions.weight"][: tokens.shape[1]]
    for layer in range(LAYERS):
        x = _block(p, f"blocks.{layer}", x)
    return _linear(p, "head", _layer_norm(p, "norm", x)), state


def _batch_norm(p: Tree, state: Tree, name: str, x: Array, train: bool) -> tuple[Array, Tree]:
    mean, var, new = state[f"{name}.running_mean"], state[f"{name}.running_var"], {}
    if train:
        count = x.size // x.shape[-1]
        old_mean, old_var = mean, var
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        new = {
            f"{name}.running_mean": (1 - MOMENTUM) * old_mean + MOMENTUM * mean,
            f"{name}.running_var": (1 - MOMENTUM) * old_var + MOMENTUM * var * count / (count - 1),
        }
    y = (x - mean) * lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]
    return y, new


def _cnn(p: Tree, state: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
    layout, new = ("NHWC", "HWIO", "NHWC"), dict(state)
    for n in range(len(CHANNELS)):
        stride = (1, 1) if n == 0 else (2, 2)
        x = lax.conv_general_dilated(
            x, p[f"convs.{n}.weight"], stride, ((1, 1), (1, 1)), dimension_numbers=layout
        )
        x, running = _batch_norm(p, state, f"norms.{n}", x, train)
        new |= running
        x = jax.nn.relu(x)
    return _linear(p, "head", x.mean((1, 2))), new


FORWARDS: dict[str, Forward] = {"mlp": _mlp, "gpt": _gpt, "cnn": _cnn}


def _adamw(p: Array, g: Array, m: Array, v: Array, lr: Array, count: Array) -> Any:
    m = BETA1 * m + (1 - BETA1) * g
    v = BETA2 * v + (1 - BETA2) * jnp.square(g)
    update = (m / (1 - BETA1**count)) / (jnp.sqrt(v / (1 - BETA2**count)) + EPSILON)
    return p * (1 - lr * DECAY) - lr * update, m, v


class Trainer:
    """Parameters, statistics and AdamW's moments on the device, and the two jitted steps."""

    def __init__(self, model: str, weights: Mapping[str, np.ndarray[Any, Any]]) -> None:
        tree = {name: jnp.asarray(_own_layout(name, w)) for name, w in weights.items()}
        running = {n: w for n, w in tree.items() if "running_" in n}
        params = {n: w for n, w in tree.items() if n not in running and "num_batches" not in n}
        zeros = partial(jax.tree.map, jnp.zeros_like)
        self._all = (params, running, zeros(params), zeros(params), jnp.zeros((), jnp.float32))
        self._step = jax.jit(_step(FORWARDS[model]), donate_argnums=0)
        self._forward = jax.jit(lambda p, state, x: FORWARDS[model](p, state, x, False)[0])

    def step(self, x: Array, y: Array, learning_rate: float) -> Array:
        """Train on a batch; the loss, not waited for."""
        loss: Array
        self._all, loss = self._step(self._all, x, y, learning_rate)
        return loss

    def infer(self, x: Array) -> Array:
        """The logits of a batch with the running statistics."""
        logits: Array = self._forward(self._all[0], self._all[1], x)
        return logits


def _step(forward: Forward) -> Callable[..., Any]:
    def loss_of(p: Tree, state: Tree, x: Array, y: Array) -> tuple[Array, Tree]:
        logits, state = forward(p, state, x, True)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1)
        return -chosen.mean(), state

    def step(everything: Any, x: Array, y: Array, lr: Array) -> Any:
        params, state, means, squares, count = everything
        (loss, state), grads = jax.value_and_grad(loss_of, has_aux=True)(params, state, x, y)
        count = count + 1
        new = {n: _adamw(p, grads[n], means[n], squares[n], lr, count) for n, p in params.items()}
        params, means, squares = ({n: row[i] for n, row in new.items()} for i in range(3))
        return (params, state, means, squares, count), loss

    return step


def _own_layout(name: str, weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[O, I, H, W] -> HWIO and [out, in] -> [in, out]; tables of embeddings stay as they are."""
    if weight.ndim == 4:
        return weight.transpose(2, 3, 1, 0)
    return weight if weight.ndim != 2 or name in TABLES else weight.T


def batch_of(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[Array, Array]:
    """A batch on the device: images as NHWC, indices as int32."""
    if x.ndim == 4:
        x = x.transpose(0, 2, 3, 1)
    inputs = x.astype(np.int32) if x.dtype.kind == "i" else x
    return jnp.asarray(inputs), jnp.asarray(y.astype(np.int32))
