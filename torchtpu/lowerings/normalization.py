"""Batch, layer, group, RMS and weight normalization; statistics in float32 or better."""

from __future__ import annotations

from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.registry import Array, lowering

Grads = tuple[Array | None, ...]


def standardized_grad(grad: Array, normal: Array, rstd: Array, axes: tuple[int, ...]) -> Array:
    """Gradient of x from that of normal = (x - mean(x)) * rstd over `axes`."""
    mean = jnp.mean(grad, axes, keepdims=True)
    projection = jnp.mean(grad * normal, axes, keepdims=True)
    return rstd * (grad - mean - normal * projection)


def _last(normalized_shape: tuple[int, ...], rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims that are normalized and those before them."""
    outer = rank - len(normalized_shape)
    return tuple(range(outer, rank)), tuple(range(outer))


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    mean = jnp.mean(x, axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axes, keepdims=True)


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@lowering("aten::native_layer_norm", compute="output")
def native_layer_norm(
    input: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None,
    bias: Array | None,
    eps: Array,
) -> tuple[Array, Array, Array]:
    """(x - mean) * rstd * weight + bias over the last dims, with mean and rstd."""
    axes, _ = _last(normalized_shape, input.ndim)
    mean, variance = _moments(input, axes)
    rstd = lax.rsqrt(variance + eps)
    return _affine((input - mean) * rstd, weight, bias), mean, rstd


@lowering("aten::native_layer_norm_backward", compute="output")
def native_layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: tuple[int, ...],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: tuple[bool, bool, bool],
) -> Grads:
    """Gradients of input, weight and bias."""
    axes, outer = _last(normalized_shape, input.ndim)
    normal = (input - mean) * rstd
    scaled = grad_out if weight is None else grad_out * weight
    return (
        standardized_grad(scaled, normal, rstd, axes) if output_mask[0] else None,
        jnp.sum(grad_out * normal, outer) if output_mask[1] else None,
        jnp.sum(grad_out, outer) if output_mask[2] else None,
    )


@lowering("aten::_fused_rms_norm", compute="output")
def fused_rms_norm(
    input: Array, normalized_shape: tuple[int, ...], weight: Array | None, eps: Array | None
) -> tuple[Array, Array]:
    """x * rsqrt(mean(x^2) + eps) * weight over the last dims, with the rsqrt."""
    axes, _ = _last(normalized_shape, input.ndim)
    if eps is None:
        eps = np.finfo(input.dtype).eps
    rstd = lax.rsqrt(jnp.mean(jnp.square(input), axes, keepdims=True) + eps)
    return _affine(input * rstd, weight, None), rstd


@lowering("aten::_fused_rms_norm_backward", compute="output")
def fused_rms_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: tuple[int, ...],
    rstd: Array,
    weight: Array | None,
    output_mask: tuple[bool, bool],
) -> Grads:
    """Gradients of input and weight."""
    axes, outer = _last(normalized_shape, input.ndim)
    normal = input * rstd
    scaled = grad_out if weight is None else grad_out * weight
    projection = jnp.mean(scaled * normal, axes, keepdims=True)
    return (
        rstd * (scaled - normal * projection) if output_mask[0] else None,
        jnp.sum(grad_out * normal, outer) if output_mask[1] else None,
    )


@lowering("aten::native_group_norm", compute="output")
def native_group_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: Array,
) -> tuple[Array, Array, Array]:
    """Normalizes each of `group` slices of the channels: [N, C, *] -> [N, G, C / G * HW]."""
    grouped = input.reshape(N, group, C // group * HxW)
    mean, variance = _moments(grouped, (2,))
    rstd = lax.rsqrt(variance + eps)
    normal = ((grouped - mean) * rstd).reshape(input.shape)
    result = _affine(normal, _channels(weight, input.ndim), _channels(bias, input.ndim))
    return result, mean[..., 0], rstd[..., 0]


@lowering("aten::native_group_norm_backward", compute="output")
def native_group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: tuple[bool, bool, bool],
) -> Grads:
    """Gradients of input, weight and bias."""
    grouped = (N, group, C // group * HxW)
    rstd = rstd.reshape(N, group, 1)
    normal = (input.reshape(grouped) - mean.reshape(N, group, 1)) * rstd
    scaled = _affine(grad_out, _channels(weight, input.ndim), None).reshape(grouped)
    over = (0, *range(2, input.ndim))
    grad_input = standardized_grad(scaled, normal, rstd, (2,)) if output_mask[0] else None
    return (
        None if grad_input is None else grad_input.reshape(input.shape),
        jnp.sum(grad_out * normal.reshape(input.shape), over) if output_mask[1] else None,
        jnp.sum(grad_out, over) if output_mask[2] else None,
    )


def _channels(vector: Array | None, rank: int) -> Array | None:
    """[C] -> [C, 1, ...], to stand beside [N, C, *]."""
    return None if vector is None else vector.reshape(-1, *(1,) * (rank - 2))


def _batch_statistics(x: Array) -> tuple[Array, Array, int]:
    """Mean and biased variance of each channel of [N, C, *], and how many elements each has."""
    over = (0, *range(2, x.ndim))
    mean, variance = _moments(x, over)
    return mean.reshape(-1), variance.reshape(-1), prod(x.shape[d] for d in over)


def _batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running: tuple[Array | None, Array | None],
    training: bool,
    momentum: Array,
    eps: Array,
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Result, saved mean and 1 / std, and the new running mean and (unbiased) variance.

    Evaluation by running statistics saves nothing: two empty vectors.
    """
    running_mean, running_var = running
    evaluates = not training and running_mean is not None and running_var is not None
    if training or running_mean is None or running_var is None:
        mean, variance, count = _batch_statistics(x)
        if running_mean is not None:
            running_mean = (1 - momentum) * running_mean + momentum * mean
        if running_var is not None:
            unbiased = variance * (count / max(count - 1, 1))
            running_var = (1 - momentum) * running_var + momentum * unbiased
    else:
        mean, variance = running_mean, running_var
    rstd = lax.rsqrt(variance + eps)
    normal = (x - _channels(mean, x.ndim)) * _channels(rstd, x.ndim)
    result = _affine(normal, _channels(weight, x.ndim), _channels(bias, x.ndim))
    if evaluates:
        mean = rstd = mean[:0]
    return result, mean, rstd, running_mean, running_var


@lowering(
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    compute="output",
    writes={"running_mean": 3, "running_var": 4},
)
def native_batch_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: Array,
    eps: Array,
) -> tuple[Array | None, ...]:
    """Normalizes each channel by the batch (training) or by the running statistics."""
    running = (running_mean, running_var)
    return _batch_norm(input, weight, bias, running, training, momentum, eps)


@lowering("aten::_native_batch_norm_legit_functional", compute="output")
def native_batch_norm_legit_functional(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: Array,
    eps: Array,
) -> tuple[Array | None, ...]:
    """native_batch_norm that returns the new running statistics."""
    running = (running_mean, running_var)
    return _batch_norm(input, weight, bias, running, training, momentum, eps)


@lowering("aten::_native_batch_norm_legit.no_stats", compute="output")
def native_batch_norm_no_stats(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: Array,
    eps: Array,
) -> tuple[Array | None, ...]:
    """native_batch_norm without running statistics."""
    return _batch_norm(input, weight, bias, (None, None), training, momentum, eps)[:3]


@lowering(
    "aten::_batch_norm_with_update", compute="output", writes={"running_mean": 4, "running_var": 5}
)
def batch_norm_with_update(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Array,
    eps: Array,
) -> tuple[Array | None, ...]:
    """native_batch_norm in training, with an empty reserve as fourth result."""
    running = (running_mean, running_var)
    *made, new_mean, new_var = _batch_norm(input, weight, bias, running, True, momentum, eps)
    return (*made, jnp.zeros((0,), jnp.uint8), new_mean, new_var)


@lowering("aten::_batch_norm_no_update", compute="output")
def batch_norm_no_update(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: Array,
    eps: Array,
) -> tuple[Array | None, ...]:
    """native_batch_norm in evaluation, with an empty reserve as fourth result."""
    running = (running_mean, running_var)
    made = _batch_norm(input, weight, bias, running, False, momentum, eps)[:3]
    return (*made, jnp.zeros((0,), jnp.uint8))


@lowering("aten::native_batch_norm_backward", compute="output")
def native_batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: Array,
    output_mask: tuple[bool, bool, bool],
) -> Grads:
    """Gradients of input, weight and bias."""
    saved = (running_mean, running_var, save_mean, save_invstd)
    return _batch_norm_grads(grad_out, input, weight, saved, train, eps, output_mask)


def _batch_norm_grads(
    grad_out: Array,
    x: Array,
    weight: Array | None,
    saved: tuple[Array | None, Array | None, Array | None, Array | None],
    train: bool,
    eps: Array,
    output_mask: tuple[bool, bool, bool],
) -> Grads:
    running_mean, running_var, mean, rstd = saved
    if not train and running_mean is not None and running_var is not None:
        mean, rstd = running_mean, lax.rsqrt(running_var + eps)
    over = (0, *range(2, x.ndim))
    rstd = _channels(rstd, x.ndim)
    normal = (x - _channels(mean, x.ndim)) * rstd
    grad_input = None
    if output_mask[0]:
        scaled = _affine(grad_out, _channels(weight, x.ndim), None)
        grad_input = standardized_grad(scaled, normal, rstd, over) if train else scaled * rstd
    return (
        grad_input,
        jnp.sum(grad_out * normal, over) if output_mask[1] else None,
        jnp.sum(grad_out, over) if output_mask[2] else None,
    )


@lowering("aten::batch_norm_backward", compute="output")
def batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_var: Array | None,
    update: bool,
    eps: Array,
    output_mask: tuple[bool, bool, bool],
    reserve: Array,
) -> Grads:
    """native_batch_norm_backward with a reserve that nothing is kept in."""
    saved = (running_mean, running_var, save_mean, save_var)
    return _batch_norm_grads(grad_out, input, weight, saved, update, eps, output_mask)


def _column_norm(v: Array, dim: int) -> Array:
    """The norm over all dims but one (all dims where dim is -1), kept for broadcasting."""
    over = tuple(d for d in range(v.ndim) if d != dim)
    return jnp.sqrt(jnp.sum(jnp.square(v), over, keepdims=True))


@lowering("aten::_weight_norm_interface", compute="output")
def weight_norm(v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    """g * v / |v|, and |v|."""
    norms = _column_norm(v, dim)
    return v * (g / norms), norms.reshape(g.shape)


@lowering("aten::_weight_norm_interface_backward", compute="output")
def weight_norm_backward(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> tuple[Array, Array]:
    """Gradients of v and g."""
    over = tuple(d for d in range(saved_v.ndim) if d != dim)
    norms = saved_norms.reshape(saved_g.shape)
    inner = jnp.sum(grad_w * saved_v, over, keepdims=True)
    grad_g = inner / norms
    return saved_g * (grad_w / norms - saved_v * inner / norms**3), grad_g
