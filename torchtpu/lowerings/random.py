"""Random numbers: pure functions of a uint32[4] key, by the Philox counter generator.

The algorithm is named, not left to the backend, so a key gives the same bits on every target.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu import sharding
from torchtpu.lowerings.elementary import real_dtype
from torchtpu.lowerings.registry import Array, lowering

_LIKE = frozenset({"self"})


def bits(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Random bits as uint32 or uint64."""
    algorithm = lax.RandomAlgorithm.RNG_PHILOX
    drawn = lax.rng_bit_generator(key, shape, dtype=dtype, algorithm=algorithm)
    return sharding.replicated(drawn[1])  # a part of them drawn alone would be other numbers


def split(key: Array, count: int) -> list[Array]:
    """Independent keys from one."""
    return list(bits(key, (count, 4), np.uint32))


def unit(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Uniform numbers in [0, 1), multiples of 2^-24 (float64: 2^-53)."""
    if np.dtype(dtype) == np.float64:
        return (bits(key, shape, np.uint64) >> 11).astype(np.float64) * 2.0**-53
    return (bits(key, shape, np.uint32) >> 8).astype(np.float32) * np.float32(2.0**-24)


def open_unit(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Uniform numbers in (0, 1): never an end, so that their logarithms are finite."""
    if np.dtype(dtype) == np.float64:
        return ((bits(key, shape, np.uint64) >> 12).astype(np.float64) + 0.5) * 2.0**-52
    return ((bits(key, shape, np.uint32) >> 9).astype(np.float32) + 0.5) * np.float32(2.0**-23)


def gaussian(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Standard normal numbers by the inverse of the distribution function."""
    sign_and_size = 2 * open_unit(key, shape, dtype) - 1
    return np.sqrt(2).astype(dtype) * lax.erf_inv(sign_and_size)


def working(dtype: Any) -> np.dtype[Any]:
    """float64 for float64 and complex128, else float32."""
    return np.dtype(np.float64 if real_dtype(dtype) == np.float64 else np.float32)


@lowering("aten::uniform", key=True, shape_only=_LIKE)
def uniform(key: Array, self: Array, from_: Array = 0.0, to: Array = 1.0) -> Array:
    """Uniform in [from, to); a value that rounds up to `to` becomes the one before it."""
    dtype = working(self.dtype)
    low, high = jnp.asarray(from_, dtype), jnp.asarray(to, dtype)
    if self.dtype.kind == "c":
        parts = [unit(k, self.shape, dtype) for k in split(key, 2)]
        return lax.complex(*(p * (high - low) + low for p in parts))
    drawn = (unit(key, self.shape, dtype) * (high - low) + low).astype(self.dtype)
    low, high = low.astype(self.dtype), high.astype(self.dtype)
    return jnp.where(drawn < high, drawn, lax.nextafter(high, low))


def finite(drawn: Array, dtype: Any) -> Array:
    """Numbers beyond the largest of a dtype as the largest: a tail has no infinity."""
    if not jnp.issubdtype(dtype, np.floating):
        return drawn
    most = float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]  # jax
    return jnp.clip(drawn, -most, most)


@lowering("aten::normal_functional", key=True, shape_only=_LIKE)
def normal(key: Array, self: Array, mean: Array = 0.0, std: Array = 1.0) -> Array:
    """Normal; a complex number has variance std^2, half of it in each part."""
    dtype = working(self.dtype)
    if self.dtype.kind == "c":
        parts = [gaussian(k, self.shape, dtype) * np.sqrt(0.5) for k in split(key, 2)]
        return lax.complex(*parts) * jnp.asarray(std) + jnp.asarray(mean)
    drawn = gaussian(key, self.shape, dtype)
    return drawn * jnp.asarray(std, dtype) + jnp.asarray(mean, dtype)


@lowering(
    "aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor", key=True
)
def normal_around(key: Array, mean: Array, std: Array = 1.0) -> Array:
    """Normal with a mean and a deviation for each element."""
    mean, std = jnp.asarray(mean), jnp.asarray(std)
    dtype = working(jnp.result_type(mean, std))
    shape = jnp.broadcast_shapes(mean.shape, std.shape)
    return gaussian(key, shape, dtype) * std.astype(dtype) + mean.astype(dtype)


@lowering("aten::log_normal", key=True, shape_only=_LIKE)
def log_normal(key: Array, self: Array, mean: Array = 1.0, std: Array = 2.0) -> Array:
    """exp of a normal number."""
    return finite(jnp.exp(normal(key, self, mean, std)), self.dtype)


@lowering("aten::exponential", key=True, shape_only=_LIKE)
def exponential(key: Array, self: Array, lambd: Array = 1.0) -> Array:
    """-log(u) / lambd, above 0."""
    dtype = working(self.dtype)
    drawn = -jnp.log(open_unit(key, self.shape, dtype)) / jnp.asarray(lambd, dtype)
    return finite(drawn, self.dtype)


@lowering("aten::cauchy", key=True, shape_only=_LIKE)
def cauchy(key: Array, self: Array, median: Array = 0.0, sigma: Array = 1.0) -> Array:
    """median + sigma tan(pi (u - 1/2))."""
    dtype = working(self.dtype)
    angle = np.pi * (open_unit(key, self.shape, dtype) - 0.5)
    drawn = jnp.asarray(median, dtype) + jnp.asarray(sigma, dtype) * jnp.tan(angle)
    return finite(drawn, self.dtype)


@lowering("aten::geometric", key=True, shape_only=_LIKE)
def geometric(key: Array, self: Array, p: Array) -> Array:
    """Number of trials up to the first success: ceil(log(u) / log(1 - p))."""
    dtype = working(self.dtype)
    drawn = jnp.log(open_unit(key, self.shape, dtype)) / jnp.log1p(-jnp.asarray(p, dtype))
    return jnp.maximum(jnp.ceil(drawn), 1)


@lowering("aten::bernoulli.p", key=True, shape_only=_LIKE)
def bernoulli_p(key: Array, self: Array, p: Array) -> Array:
    """1 with probability p, else 0."""
    return unit(key, self.shape, np.float32) < p


@lowering("aten::bernoulli", key=True)
def bernoulli(key: Array, self: Array) -> Array:
    """1 with the probability that the element is, else 0."""
    return unit(key, self.shape, working(self.dtype)) < self


@lowering("aten::bernoulli.Tensor", key=True, shape_only=_LIKE)
def bernoulli_tensor(key: Array, self: Array, p: Array) -> Array:
    """1 with the probability in p, else 0."""
    return unit(key, self.shape, working(p.dtype)) < p


def _integers(key: Array, shape: tuple[int, ...], low: Array, size: Array) -> Array:
    """low + floor(size * 64 random bits / 2^64); a size of 0 means 2^64.

    Each number comes with a probability within 2^-64 of 1 / size, as many above it as below.
    """
    drawn = bits(key, shape, np.uint64)
    scaled = jnp.where(size == 0, drawn, _high_product(drawn, size))
    return lax.bitcast_convert_type(scaled, jnp.int64) + low


def _high_product(a: Array, b: Array) -> Array:
    """The upper 64 bits of a product of two uint64, from four products of their halves."""
    low = np.uint64(0xFFFFFFFF)
    cross = (a >> 32) * (b & low) + ((a & low) * (b & low) >> 32)
    return (a >> 32) * (b >> 32) + (cross >> 32) + (((a & low) * (b >> 32) + (cross & low)) >> 32)


@lowering("aten::random.from", key=True, shape_only=_LIKE, numbers={"from", "to"})
def random_from(key: Array, self: Array, from_: Array, to: Array | None) -> Array:
    """Integers from `from` up to, not including, `to`; up to the dtype's largest without `to`."""
    low = jnp.asarray(from_, jnp.int64)
    high = np.uint64(largest_exact(self.dtype) + 1) if to is None else to.astype(jnp.uint64)
    return _integers(key, self.shape, low, high - low.astype(jnp.uint64))


@lowering("aten::random.to", key=True, shape_only=_LIKE, numbers={"to"})
def random_to(key: Array, self: Array, to: Array) -> Array:
    """Integers from 0 up to, not including, `to`."""
    return random_from(key, self, jnp.zeros((), jnp.int64), to)


@lowering("aten::random", key=True, shape_only=_LIKE)
def random(key: Array, self: Array) -> Array:
    """Integers from 0 to the largest that the dtype holds exactly."""
    if self.dtype == np.uint64:
        return bits(key, self.shape, np.uint64)
    return random_from(key, self, jnp.zeros((), jnp.int64), None)


def largest_exact(dtype: Any) -> int:
    """The largest integer (of int64 too) up to which a dtype holds all of them."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return 1
    if kind.kind in "iu":
        return min(int(np.iinfo(kind).max), 2**63 - 1)
    digits = int(jnp.finfo(dtype).nmant) + 1  # type: ignore[no-untyped-call]  # jax
    return int(2**digits)


@lowering("aten::randperm", "aten::randperm.generator", key=True)
def randperm(key: Array, n: int, dtype: Any = None) -> Array:
    """The numbers below n in random order: sorted by 64 random bits each."""
    return lax.sort((bits(key, (n,), np.uint64), lax.iota(jnp.int32, n)), num_keys=1)[1]


@lowering("aten::native_dropout", key=True)
def native_dropout(key: Array, input: Array, p: Array, train: bool | None) -> tuple[Array, Array]:
    """Zero each element with probability p and divide the rest by 1 - p; and which were kept."""
    if train is False:
        return input, jnp.ones(input.shape, bool)
    kept = unit(key, input.shape, np.float32) >= p
    dtype = working(input.dtype)
    p = jnp.asarray(p, dtype)
    scale = jnp.where(p == 1, 0, 1 / (1 - p))
    return jnp.where(kept, input.astype(jnp.result_type(input, dtype)) * scale, 0), kept


@lowering("aten::native_dropout_backward", keep={"mask"}, compute="output")
def native_dropout_backward(grad_output: Array, mask: Array, scale: Array) -> Array:
    """grad * scale where the element was kept."""
    return jnp.where(mask, grad_output * scale, 0)


@lowering("aten::multinomial", key=True)
def multinomial(key: Array, self: Array, num_samples: int, replacement: bool = False) -> Array:
    """Indices drawn with these weights; Gumbel's top-k where none may come twice."""
    weights = self.astype(working(self.dtype))
    if not replacement:
        noise = -jnp.log(-jnp.log(open_unit(key, weights.shape, weights.dtype)))
        return lax.top_k(jnp.log(weights) + noise, num_samples)[1]
    sums = jnp.cumsum(weights, -1)
    drawn = unit(key, (*weights.shape[:-1], num_samples), weights.dtype) * sums[..., -1:]
    rows = (sums.reshape(-1, sums.shape[-1]), drawn.reshape(-1, num_samples))
    index = jax.vmap(_first_above)(*rows).reshape(drawn.shape)
    last = jnp.max(jnp.where(weights > 0, jnp.arange(weights.shape[-1]), 0), -1, keepdims=True)
    return jnp.minimum(index, last)


def _first_above(sums: Array, drawn: Array) -> Array:
    return jnp.searchsorted(sums, drawn, side="right").astype(jnp.int32)


@lowering("aten::rrelu_with_noise_functional", key=True)
def rrelu_with_noise(
    key: Array,
    self: Array,
    noise: Array,
    lower: Array = 0.125,
    upper: Array = 1 / 3,
    training: bool = False,
) -> tuple[Array, Array]:
    """leaky_relu with a random slope per element in training, with the mean slope else."""
    dtype = working(self.dtype)
    x = self.astype(dtype)
    if not training:
        return jnp.where(
            x > 0, x, x * (jnp.asarray(lower) + jnp.asarray(upper)).astype(dtype) / 2
        ), noise
    low, high = jnp.asarray(lower, dtype), jnp.asarray(upper, dtype)
    slope = unit(key, x.shape, dtype) * (high - low) + low
    slope = jnp.where(x > 0, 1, slope)
    return x * slope, slope


@lowering("aten::rrelu_with_noise", key=True, writes={"noise": 1})
def rrelu_with_noise_writing(
    key: Array,
    self: Array,
    noise: Array,
    lower: Array = 0.125,
    upper: Array = 1 / 3,
    training: bool = False,
) -> tuple[Array, Array]:
    """rrelu_with_noise that keeps the slopes in `noise`."""
    result, slopes = rrelu_with_noise(key, self, noise, lower, upper, training)
    return result, slopes
