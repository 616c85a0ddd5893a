"""Whether a program fits: our model and the TPU compiler agree, just below and just above HBM.

One of them a day on v5e (15.75 GiB); TORCHTPU_TEST_ALL=1 takes all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.daily import ALL, PART
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model import stablehlo
from torchtpu.perf_model.fusion import fuse
from torchtpu.perf_model.memory import program_memory
from torchtpu.targets.compile_batch import Job, compile_batch

CHIP = chips.load("v5e")
BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
WIDTH = 4096


@dataclass(frozen=True)
class Family:
    """A program of a size: what it computes, its arguments, and which it may overwrite."""

    function: Callable[..., Any]
    arguments: Callable[[int], Any]
    below: int
    above: int
    donated: tuple[int, ...] = ()


def spec(*shape: int, dtype: Any = BF16) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def mlp(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.gelu(x @ up) @ down


def train(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return jnp.square(h.astype(F32)).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, [w - 0.1 * g.astype(w.dtype) for w, g in zip(weights, gradients, strict=True)]


def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m = 0.9 * m + 0.1 * g.astype(F32)
    v = 0.99 * v + 0.01 * jnp.square(g.astype(F32))
    return (p - 1e-3 * m / (jnp.sqrt(v) + 1e-8)).astype(BF16), m, v


def adam_types(n: int) -> Any:
    return spec(n, WIDTH), spec(n, WIDTH), spec(n, WIDTH, dtype=F32), spec(n, WIDTH, dtype=F32)


def bag(table: Any, tokens: Any) -> Any:
    return table[tokens].sum(1)


def cache(kept: Any, new: Any, position: Any) -> Any:
    return lax.dynamic_update_slice(kept, new, (0, position, 0, 0))


def scanned(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)
        return jnp.square(h.astype(F32)).mean()

    return weights - 0.1 * jax.grad(loss)(weights)


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    root = lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)
    return (wide * root).astype(BF16) * scale


FAMILIES = {
    "mlp": Family(
        mlp, lambda n: (spec(n, WIDTH), spec(WIDTH, 16384), spec(16384, WIDTH)), 303_104, 372_736
    ),
    "train": Family(
        train, lambda n: ([spec(WIDTH, WIDTH)] * 6, spec(n, WIDTH)), 225_280, 311_296, (0,)
    ),
    "adam": Family(adam, adam_types, 307_200, 376_832, (0, 2, 3)),
    "adam_copies": Family(adam, adam_types, 167_936, 204_800),
    "bag": Family(bag, lambda n: (spec(128_256, WIDTH), spec(n, 16, dtype=I32)), 101_376, 125_952),
    "concatenate": Family(
        lambda x, y: (jnp.concatenate([x, y]), (x * y).sum(1)),
        lambda n: (spec(n, WIDTH, dtype=F32), spec(n, WIDTH, dtype=F32)),
        231_424,
        282_624,
    ),
    "cache": Family(
        cache,
        lambda n: (spec(n, 2048, 8, 128), spec(n, 1, 8, 128), spec(dtype=I32)),
        3_616,
        4_416,
        (0,),
    ),
    "scan": Family(
        scanned, lambda n: (spec(12, WIDTH, WIDTH), spec(n, WIDTH)), 47_104, 57_856, (0,)
    ),
    "norm": Family(norm, lambda n: (spec(n, WIDTH), spec(WIDTH)), 921_600, 1_138_688),
    "matmul": Family(
        lambda x, w: x @ w, lambda n: (spec(n, WIDTH), spec(WIDTH, 8192)), 602_112, 737_280
    ),
    "cast": Family(
        lambda x: x.astype(BF16), lambda n: (spec(n, WIDTH, dtype=F32),), 614_400, 753_664
    ),
    "narrow": Family(  # [n, 3] is padded to [n, 4]
        lambda x, y: (x * y + 1, x - y),
        lambda n: (spec(n, 3, dtype=F32), spec(n, 3, dtype=F32)),
        228_589_568,
        279_999_488,
    ),
}
# The compiler computes activations again where a program does not fit otherwise: 14.44 GiB here,
# with 19.22 GiB by liveness alone.
_RECOMPUTED = "train-above"
_CASES = [f"{name}-{side}" for name in FAMILIES for side in ("below", "above")]


def text(case: str) -> str:
    """The StableHLO of a case."""
    name, _, side = case.partition("-")
    family = FAMILIES[name]
    size = family.below if side == "below" else family.above
    jitted = jax.jit(family.function, donate_argnums=family.donated, keep_unused=True)
    lowered = jitted.trace(*family.arguments(size)).lower(lowering_platforms=("tpu",))
    return str(lowered.as_text())


@pytest.mark.usefixtures("libtpu")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", _CASES if ALL else [_CASES[PART % len(_CASES)]])
def test_the_verdict_is_the_compilers_and_the_peak_close(
    case: str, request: pytest.FixtureRequest
) -> None:
    if case == _RECOMPUTED:
        request.applymarker(pytest.mark.xfail(strict=True, reason="recomputed under pressure"))
    module = text(case)
    ours = program_memory(fuse(stablehlo.read(module)), CHIP.hbm_usable_bytes)
    job = Job(name="program", topology="v5e:2x2", devices=1, module=module.encode())
    theirs = compile_batch([job], sys.executable, 800)["program"]
    assert theirs.report is not None or theirs.out_of_memory, theirs.failure
    peak_bytes = theirs.report.peak_bytes if theirs.report else theirs.needed_bytes
    assert ours.fits == (not theirs.out_of_memory)
    assert ours.peak_bytes == pytest.approx(peak_bytes, rel=0.1)
