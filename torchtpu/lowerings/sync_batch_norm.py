"""Parts of batch normalization whose statistics are joined between devices: SyncBatchNorm."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _over(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _channels(vector: Array, rank: int) -> Array:
    """[C] -> [C, 1, ...], to stand beside [N, C, *]."""
    return vector.reshape(-1, *(1,) * (rank - 2))


@lowering("aten::batch_norm_stats")
def batch_norm_stats(input: Array, eps: Array) -> tuple[Array, Array]:
    """Mean and 1 / sqrt(variance + eps) of each channel of [N, C, *]."""
    x, over = _wide(input), _over(input)
    mean = jnp.mean(x, over)
    variance = jnp.mean(jnp.square(x - _channels(mean, x.ndim)), over)
    return mean, lax.rsqrt(variance + eps)


@lowering("aten::batch_norm_elemt")
def batch_norm_elemt(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    invstd: Array,
    eps: Array,
) -> Array:
    """(x - mean) * invstd * weight + bias."""
    x = _wide(input)
    normal = (x - _channels(mean, x.ndim)) * _channels(invstd, x.ndim)
    normal = normal if weight is None else normal * _channels(weight, x.ndim)
    return normal if bias is None else normal + _channels(bias, x.ndim)


def _gathered(
    mean: Array,
    invstd: Array,
    running: tuple[Array | None, Array | None],
    momentum: Array,
    eps: Array,
    counts: Array,
) -> tuple[Array | None, ...]:
    """Statistics over [W, C] ones by Chan et al. 1979, and the new running ones."""
    counts = counts.reshape(-1, 1).astype(mean.dtype)
    total = jnp.sum(counts)
    whole = jnp.sum(mean * counts, 0) / total
    squares = (1 / jnp.square(invstd) - eps) * counts + jnp.square(mean - whole) * counts
    squares = jnp.sum(squares, 0)
    new: list[Array | None] = []
    for old, value in zip(running, (whole, squares / (total - 1)), strict=True):
        if old is None:
            new.append(None)
        else:
            new.append((1 - momentum) * _wide(old) + momentum * value)
    return whole, lax.rsqrt(squares / total + eps), *new


@lowering("aten::batch_norm_gather_stats_with_counts", writes={"running_mean": 2, "running_var": 3})
def batch_norm_gather_stats_with_counts(
    input: Array,
    mean: Array,
    invstd: Array,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: Array,
    eps: Array,
    counts: Array,
) -> tuple[Array | None, ...]:
    """Mean and invstd over all devices from those of each, [W, C], of `counts` elements each."""
    return _gathered(mean, invstd, (running_mean, running_var), momentum, eps, counts)


@lowering(
    "aten::batch_norm_gather_stats",
    writes={"running_mean": 2, "running_var": 3},
    numbers={"count"},
)
def batch_norm_gather_stats(
    input: Array,
    mean: Array,
    invstd: Array,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: Array,
    eps: Array,
    count: Array,
) -> tuple[Array | None, ...]:
    """batch_norm_gather_stats_with_counts where every device has the same count."""
    counts = jnp.full(mean.shape[0], count)
    return _gathered(mean, invstd, (running_mean, running_var), momentum, eps, counts)


@lowering("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad_out: Array,
    input: Array,
    mean: Array,
    invstd: Array,
    weight: Array | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Array | None, ...]:
    """Sums of grad and of grad * (x - mean), and the gradients of weight and bias."""
    grad, x = _wide(grad_out), _wide(input)
    total = jnp.sum(grad, _over(x))
    projection = jnp.sum(grad * (x - _channels(mean, x.ndim)), _over(x))
    sums = (total, projection) if input_g else (None, None)
    return *sums, projection * invstd if weight_g else None, total if bias_g else None


@lowering("aten::batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    grad_out: Array,
    input: Array,
    mean: Array,
    invstd: Array,
    weight: Array | None,
    sum_dy: Array,
    sum_dy_xmu: Array,
    count: Array,
) -> Array:
    """The gradient of the input from sums over all devices, of `count` elements each."""
    grad, x = _wide(grad_out), _wide(input)
    total = jnp.sum(count).astype(x.dtype)
    slope = _channels(jnp.square(invstd) * sum_dy_xmu / total, x.ndim)
    centred = x - _channels(mean, x.ndim)
    factor = invstd if weight is None else invstd * weight
    return (grad - _channels(sum_dy / total, x.ndim) - centred * slope) * _channels(factor, x.ndim)


@lowering("aten::batch_norm_update_stats", writes={"running_mean": 2, "running_var": 3})
def batch_norm_update_stats(
    input: Array, running_mean: Array | None, running_var: Array | None, momentum: Array
) -> tuple[Array | None, ...]:
    """Mean and variance of each channel, and the new running mean and (unbiased) variance."""
    x, over = _wide(input), _over(input)
    mean = jnp.mean(x, over)
    variance = jnp.mean(jnp.square(x - _channels(mean, x.ndim)), over)
    count = x.size // max(x.shape[1], 1)
    unbiased = variance * count / (count - 1) if count != 1 else variance * jnp.nan
    new = [
        None if old is None else (1 - momentum) * _wide(old) + momentum * value
        for old, value in ((running_mean, mean), (running_var, unbiased))
    ]
    return mean, variance, *new
