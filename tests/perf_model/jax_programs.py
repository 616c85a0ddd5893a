"""Programs lowered by JAX, as the readers and rules meet them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from torchtpu.perf_model import stablehlo
from torchtpu.perf_model.program import Graph


def spec(*shape: int, dtype: Any = jnp.float32) -> Any:
    """The type of an argument."""
    return jax.ShapeDtypeStruct(shape, dtype)


def module(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The StableHLO module of a function."""
    return jax.jit(function, **options).lower(*arguments).compiler_ir("stablehlo")


def graph(function: Callable[..., Any], *arguments: Any, **options: Any) -> Graph:
    """The graph of a function."""
    return stablehlo.read(module(function, *arguments, **options))


def matmul(m: int, k: int, n: int, dtype: Any = jnp.bfloat16) -> Graph:
    """[m, k] x [k, n] -> [m, n]."""
    return graph(lambda a, b: a @ b, spec(m, k, dtype=dtype), spec(k, n, dtype=dtype))


def softmax(x: Any) -> Any:
    """Softmax over the last axis."""
    return jax.nn.softmax(x, axis=-1)


def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    """One Adam update without bias correction."""
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def mlp_loss(params: Any, x: Any) -> Any:
    """Mean square of a two-layer perceptron."""
    hidden = jax.nn.relu(x @ params[0])
    return ((hidden @ params[1]) ** 2).mean()


def mlp_step(params: Any, x: Any) -> Any:
    """One gradient-descent step."""
    gradients = jax.grad(mlp_loss)(params, x)
    return [p - 0.1 * g for p, g in zip(params, gradients, strict=True)]
