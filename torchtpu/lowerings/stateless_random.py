"""torch.func._random: Philox 4x32-10 as torch's own kernels run it, so that the bits are theirs.

A key is uint64 [seed, offset]. Block n of its stream is Philox of the counter (offset + n, 0) under
the key seed (Salmon et al. 2011); a block gives four 32-bit numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import jax.numpy as jnp
import numpy as np

from torchtpu.lowerings.registry import Array, lowering

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def _words(x: Array) -> tuple[Array, Array]:
    """The low and the high half of uint64."""
    return x.astype(jnp.uint32), (x >> 32).astype(jnp.uint32)


def _product(factor: int, x: Array) -> tuple[Array, Array]:
    return _words(x.astype(jnp.uint64) * np.uint64(factor))


def _block(seed: Array, counter: Array) -> Array:
    """uint64[...] seeds and counters -> uint32[..., 4]."""
    (key0, key1), (c0, c1) = _words(seed), _words(counter)
    c2 = c3 = jnp.zeros_like(c0)
    for _ in range(10):
        (low0, high0), (low1, high1) = _product(_MULTIPLIERS[0], c0), _product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = key0 + np.uint32(_WEYL[0]), key1 + np.uint32(_WEYL[1])
    return jnp.stack([c0, c1, c2, c3], -1)


def _as_key(block: Array) -> Array:
    """uint32[..., 4] -> uint64[..., 2]."""
    wide = block.astype(jnp.uint64)
    return wide[..., 0::2] | wide[..., 1::2] << 32


@lowering("aten::_philox_key_split")
def philox_key_split(key: Array, num_splits: int) -> Array:
    """[*, 2] -> [num_splits, *, 2]: the first blocks of the key's stream as keys."""
    steps = jnp.arange(num_splits, dtype=jnp.uint64).reshape(-1, *(1,) * (key.ndim - 1))
    seed = jnp.broadcast_to(key[..., 0], (num_splits, *key.shape[:-1]))
    return _as_key(_block(seed, key[..., 1] + steps))


@lowering("aten::_philox_key_fold_in", numbers={"data"})
def philox_key_fold_in(key: Array, data: Array) -> Array:
    """The data-th of the keys that _philox_key_split gives."""
    return _as_key(_block(key[..., 0], key[..., 1] + jnp.asarray(data).astype(jnp.uint64)))


def _drawn(key: Array, shape: tuple[int, ...], sample: Callable[[Array], Array]) -> Array:
    """Samples of blocks [..., 4]: the stream of one key, or one for each leading index."""
    batch = key.shape[:-1]
    keyed = max((d + 1 for d, n in enumerate(batch) if n != 1), default=0)
    rows, each = shape[:keyed], prod(shape[keyed:])
    key = jnp.broadcast_to(key.reshape(*batch[:keyed], 1, 2), (*rows, 1, 2))
    per_block = sample(jnp.zeros(4, jnp.uint32)).shape[0]
    steps = jnp.arange(-(-each // per_block), dtype=jnp.uint64)
    seed, counter = jnp.broadcast_arrays(key[..., 0], key[..., 1] + steps)
    values = sample(_block(seed, counter))
    return values.reshape(*rows, steps.size * per_block)[..., :each].reshape(shape)


def _whole(words: Array) -> Array:
    """Two words as one uint64, the first one high: [..., 4] -> [..., 2]."""
    wide = words.astype(jnp.uint64)
    return wide[..., 0::2] << 32 | wide[..., 1::2]


@lowering("aten::_philox_uniform_")
def philox_uniform(self: Array, key: Array, low: Array = 0.0, high: Array = 1.0) -> Array:
    """Uniform in [low, high), of as many bits as the dtype has digits."""
    digits = _DIGITS[self.dtype.name]
    wide = jnp.promote_types(self.dtype, jnp.float32)
    bits = _drawn(key, self.shape, _whole if digits == 53 else lambda words: words)
    unit = (bits & ((1 << digits) - 1)).astype(wide) * (2.0**-digits)
    low, high = (jnp.asarray(v).astype(self.dtype).astype(wide) for v in (low, high))
    return unit * (high - low) + low


def _gaussians(words: Array) -> Array:
    """float32 by Box and Muller 1958: a cosine and a sine of each pair of words."""
    unit = words.astype(jnp.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    radius, angle = jnp.sqrt(-2 * jnp.log(unit[..., 0::2])), 2 * np.float32(np.pi) * unit[..., 1::2]
    pairs = jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], -1)
    return pairs.reshape(words.shape)


def _wide_gaussians(words: Array) -> Array:
    """float64 from all four words: [..., 4] -> [..., 2]."""
    unit = (_whole(words).astype(jnp.float64) + 0.5) * 2.0**-64
    radius, angle = jnp.sqrt(-2 * jnp.log(unit[..., 0])), 2 * np.pi * unit[..., 1]
    return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], -1)


@lowering("aten::_philox_normal_")
def philox_normal(self: Array, key: Array, mean: Array = 0.0, std: Array = 1.0) -> Array:
    """Normal numbers with this mean and deviation."""
    sample = _wide_gaussians if self.dtype == jnp.float64 else _gaussians
    drawn = _drawn(key, self.shape, sample)
    return drawn * jnp.asarray(std).astype(drawn.dtype) + jnp.asarray(mean).astype(drawn.dtype)
