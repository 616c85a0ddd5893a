"""The order that frees memory early."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.perf_model.jax_programs import graph, spec
from torchtpu.perf_model.fusion import fuse
from torchtpu.perf_model.memory import program_memory
from torchtpu.perf_model.order import freeing

LAYERS, SIZE, ROWS = 6, 256, 8192
ACTIVATION = 4 * SIZE * ROWS


def train(weights: list[Any], x: Any) -> Any:
    def loss(weights: list[Any]) -> Any:
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return jnp.square(h).sum()

    return jax.grad(loss)(weights)


def test_a_weight_gradient_runs_as_soon_as_it_can() -> None:
    made = graph(train, [spec(SIZE, SIZE)] * LAYERS, spec(ROWS, SIZE))
    peak_bytes = program_memory(fuse(made), 1).peak_bytes
    # x, what the layers save, the gradient of one and that of the next; not all gradients
    assert peak_bytes < (LAYERS + 3) * ACTIVATION


def test_every_kernel_runs_after_those_it_reads_from() -> None:
    schedule = fuse(graph(train, [spec(SIZE, SIZE)] * LAYERS, spec(ROWS, SIZE)))
    order = freeing(schedule)
    assert sorted(k.ops for k in order.kernels) == sorted(k.ops for k in schedule.kernels)
    made = set(schedule.graph.inputs)
    for kernel in order.kernels:
        assert {v for v, _ in kernel.reads} <= made
        made |= {v for v, _ in (*kernel.writes, *kernel.in_place)}


def test_what_one_value_gives_is_not_kept_beside_it() -> None:
    def norm(x: Any, scale: Any) -> Any:
        y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)
        return (jnp.tanh(y * scale)).sum()

    made = graph(jax.grad(norm), spec(ROWS, SIZE), spec(SIZE))
    assert program_memory(fuse(made), 1).peak_bytes < 2.5 * ACTIVATION  # x and its gradient
