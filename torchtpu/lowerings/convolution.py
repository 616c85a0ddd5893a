"""Convolutions of any rank, transposed or not, and their gradients: stablehlo.convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering

Dims = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a kernel moves over its input."""

    stride: Dims
    padding: Dims
    dilation: Dims
    transposed: bool
    output_padding: Dims
    groups: int

    @classmethod
    def of(
        cls,
        rank: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Window:
        """A window over `rank` dims; a single number counts for all of them."""
        return cls(
            stride=_each(stride, rank),
            padding=_each(padding, rank),
            dilation=_each(dilation, rank),
            transposed=transposed,
            output_padding=_each(output_padding, rank),
            groups=groups,
        )


def _each(values: Sequence[int], rank: int) -> Dims:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def convolve(input: Array, weight: Array, window: Window, accumulate: bool = False) -> Array:
    """[N, C, *] with [O, C / groups, *K] (transposed: [C, O / groups, *K]) -> [N, O, *].

    With `accumulate`, half dtypes give the float32 accumulator.
    """
    spatial = "DHW"[3 - (input.ndim - 2) :]
    dims = (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}")
    half = input.dtype in (jnp.bfloat16, jnp.float16)
    preferred = jnp.float32 if accumulate and half else None
    if not window.transposed:
        return lax.conv_general_dilated(
            input,
            weight,
            window.stride,
            [(p, p) for p in window.padding],
            rhs_dilation=window.dilation,
            dimension_numbers=dims,
            feature_group_count=window.groups,
            preferred_element_type=preferred,
        )
    reach = [d * (k - 1) for d, k in zip(window.dilation, weight.shape[2:], strict=True)]
    padding = [
        (r - p, r - p + extra)
        for r, p, extra in zip(reach, window.padding, window.output_padding, strict=True)
    ]
    return lax.conv_general_dilated(
        input,
        _flipped(weight, window.groups),
        (1,) * len(padding),
        padding,
        lhs_dilation=window.stride,
        rhs_dilation=window.dilation,
        dimension_numbers=dims,
        feature_group_count=window.groups,
        preferred_element_type=preferred,
    )


def _flipped(weight: Array, groups: int) -> Array:
    """[C, O / groups, *K] -> [O, C / groups, *K] with every kernel reversed."""
    channels, outputs, *kernel = weight.shape
    weight = lax.rev(weight, tuple(range(2, weight.ndim)))
    split = weight.reshape(groups, channels // groups, outputs, *kernel)
    return jnp.swapaxes(split, 1, 2).reshape(groups * outputs, channels // groups, *kernel)


@lowering("aten::convolution")
def convolution(
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    transposed: bool,
    output_padding: Dims,
    groups: int,
) -> Array:
    """input * weight + bias."""
    window = Window.of(
        weight.ndim - 2, stride, padding, dilation, transposed, output_padding, groups
    )
    result = convolve(input, weight, window, accumulate=True)
    if bias is None:
        return result
    return result + bias.reshape(-1, *(1,) * (weight.ndim - 2)).astype(result.dtype)


@lowering("aten::convolution_backward")
def convolution_backward(
    grad_output: Array,
    input: Array,
    weight: Array,
    bias_sizes: Dims | None,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    transposed: bool,
    output_padding: Dims,
    groups: int,
    output_mask: tuple[bool, bool, bool],
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of input, weight and bias: the transposes of a map that is linear in each."""
    if not transposed and weight.shape[1]:  # torch's formula of _conv_depthwise2d says one group
        groups = input.shape[1] // weight.shape[1]
    window = Window.of(
        weight.ndim - 2, stride, padding, dilation, transposed, output_padding, groups
    )
    grads: list[Array | None] = [None, None, None]
    grad_output = grad_output.astype(input.dtype)
    inputs, weights = input, weight
    if jnp.iscomplexobj(weight):  # torch's gradient is the conjugate transpose
        inputs, weights = jnp.conj(input), jnp.conj(weight)
    if output_mask[0]:
        back = jax.linear_transpose(lambda x: convolve(x, weights, window), input)
        (grads[0],) = back(grad_output)
    if output_mask[1]:
        back = jax.linear_transpose(lambda w: convolve(inputs, w, window), weight)
        (grads[1],) = back(grad_output)
    if output_mask[2]:
        over = (0, *range(2, grad_output.ndim))
        grads[2] = jnp.sum(grad_output, axis=over)
    return grads[0], grads[1], grads[2]
