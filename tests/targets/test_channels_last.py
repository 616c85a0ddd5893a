"""Programs computed with channels last give the same, with a transpose only where they have to."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from torchtpu.targets import Settings, cpu
from torchtpu.targets.channels_last import channels_last
from torchtpu.targets.pjrt import PjrtTarget

Array = Any


def lowered(function: Callable[..., Any], *inputs: Array) -> tuple[Any, list[Any]]:
    """The module of a function, and shapes and dtypes of its results."""
    traced = jax.jit(function).trace(*inputs)
    module = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    return module, [(o.shape, o.dtype) for o in jax.tree.leaves(traced.out_info)]


def transposes(module: Any) -> int:
    """How many the main function has that move something."""
    found = re.findall(r"stablehlo.transpose .*dims = \[(.*?)\]", str(module.body.operations[0]))
    return sum(dims.split(", ") != sorted(dims.split(", ")) for dims in found)


def computed(module: Any, types: list[Any], *inputs: Array) -> list[Any]:
    """What a module gives as it stands."""
    target = cpu.create("", Settings())
    assert isinstance(target, PjrtTarget)
    executable = PjrtTarget.compile(target, module, types)
    return [target.get(r) for r in executable.run([target.put(np.asarray(i)) for i in inputs])]


def drawn(*shape: int) -> Array:
    """Numbers as float32."""
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def convolved(x: Array, weight: Array, groups: int = 1) -> Array:
    """[N, C, *] with padding that keeps the size."""
    space = "DHW"[3 - (x.ndim - 2) :]
    dims = (f"NC{space}", f"OI{space}", f"NC{space}")
    ones = (1,) * (x.ndim - 2)
    pads = [(1, 1)] * (x.ndim - 2)
    return lax.conv_general_dilated(
        x, weight, ones, pads, dimension_numbers=dims, feature_group_count=groups
    )


def windowed(x: Array, init: Array, op: Any) -> Array:
    """Pooling by two."""
    return lax.reduce_window(
        x, init, op, (1, 1, 2, 2), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (0, 0))
    )


X, W = drawn(2, 3, 6, 8), drawn(4, 3, 3, 3)
# What follows a convolution, and all transposes: of its input, of its kernel, and what is listed.
FOLLOWING: dict[str, tuple[Callable[[Array], Any], int]] = {
    "nothing": (lambda y: y, 1),
    "pointwise": (lambda y: jnp.where(y > 0, jnp.tanh(y) + 2, lax.clamp(-1.0, y, 1.0)), 1),
    "a norm": (lambda y: (y - y.mean((0, 2, 3), keepdims=True)) / y.std((2, 3), keepdims=True), 4),
    "a bias": (lambda y: y + jnp.arange(4.0).reshape(4, 1, 1), 2),
    "a mean over the image": (lambda y: y.mean((2, 3)), 0),
    "a maximum over channels": (lambda y: y.max(1), 0),
    "a maximum over rows": (lambda y: y.max(2), 1),
    "the place of the largest": (lambda y: y.argmax(1), 0),
    "maxima of windows": (lambda y: windowed(y, -jnp.inf, lax.max), 1),
    "sums of windows": (lambda y: windowed(y, 0.0, lax.add), 1),
    "padding": (lambda y: lax.pad(y, 1.0, ((0, 0, 0), (1, 0, 0), (0, 2, 1), (-1, 0, 0))), 1),
    "concatenation": (lambda y: jnp.concatenate([y, y * 2], 1), 1),
    "a slice": (lambda y: y[:, ::2, 1:], 1),
    "reversed rows": (lambda y: lax.rev(y, (2,)), 1),
    "a transpose to channels last": (lambda y: y.transpose(0, 2, 3, 1), 0),
    "another transpose": (lambda y: jnp.exp(y.transpose(1, 0, 3, 2)) + 1, 1),
    "a reshape": (lambda y: y.reshape(2, -1) * 2, 1),
    "a branch that sees it": (lambda y: lax.cond(y[0, 0, 0, 0] > 0, lambda: y * 2, lambda: -y), 2),
    "a loop": (lambda y: lax.fori_loop(0, 3, lambda _, v: v * 0.5 + y, y), 1),
    "a function": (lambda y: jax.jit(lambda v: jax.nn.relu(v) + v.mean())(y), 1),
    "a convolution": (lambda y: convolved(jax.nn.relu(y), drawn(5, 4, 3, 3)), 2),
    "one by groups": (lambda y: convolved(y, drawn(8, 2, 3, 3), groups=2), 2),
    "gradients": (jax.grad(lambda y: windowed(jax.nn.relu(y), -jnp.inf, lax.max).sum()), 1),
    "two results": (lambda y: (y, y.sum((0, 2, 3)), y * y), 2),
}  # fmt: skip


@pytest.mark.parametrize("what", FOLLOWING)
def test_the_same_numbers(what: str) -> None:
    following, expected = FOLLOWING[what]
    module, types = lowered(lambda x, w: following(convolved(x, w)), X, W)
    text = str(module)
    made = channels_last(module)
    assert str(module) == text
    assert made.operation.verify()
    for ours, theirs in zip(
        computed(made, types, X, W), computed(module, types, X, W), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-5)
    assert transposes(made) == 2 + expected


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients_of_any_rank(rank: int) -> None:
    x, first = drawn(2, 3, *(6,) * rank), drawn(4, 3, *(3,) * rank)
    second = drawn(4, 4, *(3,) * rank)

    def loss(first: Array, second: Array, x: Array) -> Array:
        return (convolved(jnp.tanh(convolved(x, first)), second) ** 2).sum()

    module, types = lowered(jax.grad(loss, (0, 1)), first, second, x)
    made = channels_last(module)
    inputs = (first, second, x)
    for ours, theirs in zip(
        computed(made, types, *inputs), computed(module, types, *inputs), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, 1e-3, 1e-3)


def test_a_program_without_convolutions_stays() -> None:
    module, _ = lowered(lambda x: x.transpose(1, 0) + 1, drawn(2, 3))
    assert channels_last(module) is module
