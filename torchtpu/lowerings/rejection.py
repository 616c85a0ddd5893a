"""Counts and shapes drawn by rejection: Poisson, binomial, gamma and Dirichlet numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.random import gaussian, open_unit, split, working
from torchtpu.lowerings.registry import Array, lowering


@lowering("aten::poisson", key=True)
def poisson(key: Array, self: Array) -> Array:
    """Poisson counts with these means; NaN where a mean is none."""
    mean = self.astype(working(self.dtype))
    known = (mean >= 0) & (mean < jnp.inf)
    drawn = _poisson(key, jnp.where(known, mean, 0))
    return jnp.where(known, drawn, jnp.where(mean < 0, jnp.nan, mean))


def _poisson(key: Array, mean: Array) -> Array:
    """Multiply uniform numbers up to a mean of 10, transformed rejection (Hoermann 1993) above."""
    return jnp.where(mean < 10, _poisson_small(key, mean), _poisson_large(key, mean))


def _poisson_small(key: Array, mean: Array) -> Array:
    limit = jnp.exp(-jnp.minimum(mean, 10))

    def step(state: Any) -> Any:
        key, product, count = state
        key, draw = split(key, 2)
        product = product * open_unit(draw, mean.shape, mean.dtype)
        return key, product, jnp.where(product > limit, count + 1, count)

    start = (key, jnp.ones_like(mean), jnp.zeros_like(mean))
    return lax.while_loop(lambda s: jnp.any(s[1] > limit), step, start)[2]


def _poisson_large(key: Array, mean: Array) -> Array:
    mean = jnp.maximum(mean, 10)
    b = 0.931 + 2.53 * jnp.sqrt(mean)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    v_r = 0.9277 - 3.6224 / (b - 2)

    def step(state: Any) -> Any:
        key, count, done = state
        key, first, second = split(key, 3)
        u = open_unit(first, mean.shape, mean.dtype) - 0.5
        v = open_unit(second, mean.shape, mean.dtype)
        us = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / us + b) * u + mean + 0.43)
        quick = (us >= 0.07) & (v <= v_r)
        reject = (k < 0) | ((us < 0.013) & (v > us))
        s = jnp.log(v * inverse_alpha / (a / (us * us) + b))
        exact = s <= _log_poisson(jnp.maximum(k, 0), mean)
        accept = quick | (~reject & exact)
        return key, jnp.where(done | ~accept, count, k), done | accept

    start = (key, jnp.zeros_like(mean), jnp.zeros(mean.shape, bool))
    return lax.while_loop(lambda s: ~jnp.all(s[2]), step, start)[1]


def _log_poisson(k: Array, mean: Array) -> Array:
    """log P(k), by Loader's saddle point (2000) where k log(mean) - lgamma(k + 1) would cancel."""
    few = jnp.minimum(k, 16)
    direct = few * jnp.log(mean) - mean - lax.lgamma(few + 1)
    many = jnp.maximum(k, 16)
    off = (many - mean) / mean
    deviance = mean * ((1 + off) * jnp.log1p(off) - off)
    series = 1 / (12 * many) - 1 / (360 * many**3)  # of lgamma, after Stirling
    return jnp.where(k < 16, direct, -deviance - series - jnp.log(2 * np.pi * many) / 2)


@lowering("aten::binomial", key=True)
def binomial(key: Array, count: Array, prob: Array) -> Array:
    """Successes in `count` trials of probability `prob`."""
    dtype = working(count.dtype)
    count, prob = jnp.broadcast_arrays(count.astype(dtype), prob.astype(dtype))
    count, prob = jnp.maximum(count, 0), jnp.clip(prob, 0, 1)
    return jax.random.binomial(_typed(key), count, prob, shape=count.shape, dtype=dtype)


def _typed(key: Array) -> Array:
    return jax.random.wrap_key_data(split(key, 1)[0][:2], impl="threefry2x32")


@lowering("aten::_standard_gamma", key=True)
def standard_gamma(key: Array, self: Array) -> Array:
    """Gamma numbers of scale 1 with these shapes, above 0."""
    shape = self.astype(working(self.dtype))
    drawn, boost = _gamma(key, shape)
    kept_in = self.dtype if self.dtype.kind == "f" else shape.dtype
    least = jnp.finfo(kept_in).tiny  # type: ignore[no-untyped-call]  # jax
    return jnp.where(shape < jnp.inf, jnp.maximum(drawn * jnp.exp(boost), least), shape)


@lowering("aten::_sample_dirichlet", key=True)
def sample_dirichlet(key: Array, self: Array) -> Array:
    """Dirichlet vectors along the last dim: gamma numbers over their sum, by their logarithms."""
    rows = self.astype(working(self.dtype))
    drawn, boost = _gamma(key, rows[None] if self.ndim == 0 else rows)
    return jax.nn.softmax(jnp.log(drawn) + boost, -1).reshape(self.shape)


def _gamma(key: Array, shape: Array) -> tuple[Array, Array]:
    """Gamma numbers (Marsaglia, Tsang 2000) as a factor and the logarithm of another one."""
    key, booster = split(key, 2)
    small = shape < 1  # Gamma(a) is Gamma(a + 1) u^(1 / a)
    d = jnp.where(small, jnp.maximum(shape, 0) + 1, shape) - 1 / 3
    c = 1 / jnp.sqrt(9 * d)

    def step(state: Any) -> Any:
        key, drawn, done = state
        key, first, second = split(key, 3)
        x = gaussian(first, shape.shape, shape.dtype)
        v = (1 + c * x) ** 3
        log_u = jnp.log(open_unit(second, shape.shape, shape.dtype))
        accept = (v > 0) & (log_u < x * x / 2 + d * (1 - v + jnp.log(jnp.where(v > 0, v, 1))))
        return key, jnp.where(done | ~accept, drawn, d * v), done | accept

    start = (key, d, ~(shape < jnp.inf))
    drawn = lax.while_loop(lambda s: ~jnp.all(s[2]), step, start)[1]
    log_u = jnp.log(open_unit(booster, shape.shape, shape.dtype))
    return drawn, jnp.where(small, log_u / jnp.maximum(shape, 0), 0)


@lowering("aten::_standard_gamma_grad", compute="output")
def standard_gamma_grad(self: Array, output: Array) -> Array:
    """Derivative of a gamma number with respect to its shape."""
    return lax.random_gamma_grad(self, output)
