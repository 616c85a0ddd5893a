"""Normalisation, convolution and attention where the dims they work on are not padded."""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.compiler.padding.builder import Builder, Value
from torchtpu.compiler.padding.layout import (
    Dim,
    Layout,
    Unpaddable,
    extent,
    is_size,
    padded,
    static_dim,
)
from torchtpu.compiler.padding.table import (
    Call,
    Rule,
    outputs,
    redo,
    redo_node,
    rule,
    static_value,
    true_shape,
)
from torchtpu.private.torch import pytree

aten = torch.ops.aten


def rowwise(b: Builder, call: Call, rows: int, *, zero: bool = False) -> Any:
    """Write an op whose results in a row (its `rows` first dims) depend on that row alone.

    With `zero` the padding is overwritten first: for backward ops, whose gradients of parameters
    are sums over the rows, and in which a row of zeros adds nothing.
    """
    first = call.values[0].dims[: max(rows, 0)]
    args = dict(call.args)
    for name, value in args.items():
        if isinstance(value, Value):
            if any(map(padded, value.dims[len(first) :])):
                return NotImplemented
            for d, dim in enumerate(value.dims[: len(first)]):
                if padded(dim):
                    value = b.relayout(value, d, first[d])
            args[name] = b.fill(value, 0) if zero else value
        else:
            args[name] = at_bucket(b, value)
    node = redo_node(b, Call(node=call.node, args=args, true=call.true))
    return results(b, node, call, lambda true: _row_layout(b, true, first))


def at_bucket(b: Builder, value: Any) -> Any:
    """Return an argument that is a size (or holds sizes) with its bucket's number."""

    def size_of(e: Any) -> Any:
        return b.bucket.size(e) if is_size(e) else e

    return pytree.tree_map(size_of, value, is_leaf=is_size)


def results(b: Builder, node: Any, call: Call, layout: Any) -> Any:
    """Return the op's result or results, each lying as `layout` of its unpadded example says."""
    if not isinstance(call.true, (tuple, list)):
        return Value(node, layout(call.true))
    pairs = zip(outputs(b, node), call.true, strict=True)
    return [Value(n, layout(t)) if isinstance(t, torch.Tensor) else t for n, t in pairs]


def _row_layout(b: Builder, true: Any, first: Layout) -> Layout:
    dims: list[Dim] = []
    for d, n in enumerate(true_shape(true)):
        if n.is_Integer:
            dims.append(static_dim(int(n)))
        elif d < len(first) and b.equal(n, extent(first[d])):
            dims.append(first[d])
        else:
            raise Unpaddable(f"a result of size {n} that is not one of the rows")
    return tuple(dims)


def trailing(count: int, *, zero: bool = False) -> Rule:
    """Return the rule of an op that mixes elements along its last `count` dims."""

    def write(b: Builder, call: Call) -> Any:
        return rowwise(b, call, len(call.values[0].dims) - count, zero=zero)

    return write


rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward",
)(trailing(2))


@rule("_fft_r2c", "_fft_c2c", "_fft_c2r")
def _fft(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    along = call.dims(len(x.dims))
    if any(padded(x.dims[d]) for d in along):
        raise Unpaddable("a Fourier transform over a varying size")
    changed = b.bucket.layout(call.shape)
    return redo(b, call, [changed[d] if d in along else dim for d, dim in enumerate(x.dims)])


@rule("native_layer_norm")
def _layer_norm(b: Builder, call: Call) -> Any:
    return rowwise(b, call, len(call["input"].dims) - len(call["normalized_shape"]))


@rule("native_layer_norm_backward")
def _layer_norm_backward(b: Builder, call: Call) -> Any:
    rows = len(call["input"].dims) - len(call["normalized_shape"])
    return rowwise(b, call, rows, zero=True)


@rule("native_group_norm")
def _group_norm(b: Builder, call: Call) -> Any:
    return rowwise(b, call, 1)


@rule("native_group_norm_backward")
def _group_norm_backward(b: Builder, call: Call) -> Any:
    return rowwise(b, call, 1, zero=True)


@rule("_native_batch_norm_legit_no_training")
def _batch_norm_at_inference(b: Builder, call: Call) -> Any:
    x: Value = call["input"]
    if padded(x.dims[1]):
        raise Unpaddable("batch norm over a varying number of channels")
    first, *rest = outputs(b, redo_node(b, call))
    return [Value(first, x.dims), *map(static_value, rest)]


# Convolution: spatial padding is zero, as beyond the true border.


def _spatial_ready(b: Builder, x: Value) -> Value:
    """Return the image with valid elements first and zeros after them, apart from the batch."""
    batch = len(x.dims) - 2
    dims = range(1, len(x.dims))
    if batch < 1 or padded(x.dims[1]):
        raise Unpaddable("convolution over a varying number of channels, or without a batch")
    return b.fill(b.lead(x, dims), 0, dims)


@rule("convolution")
def _convolution(b: Builder, call: Call) -> Value:
    x = _spatial_ready(b, call["input"])
    if call["weight"].padded:
        raise Unpaddable("a convolution's weight has a varying size")
    dims = (x.dims[0], *b.bucket.layout(call.shape[1:]))
    return redo(b, call, dims, input=x)


@rule("convolution_backward")
def _convolution_backward(b: Builder, call: Call) -> Any:
    grad, x = (_spatial_ready(b, call[name]) for name in ("grad_output", "input"))
    grad = b.relayout(grad, 0, x.dims[0])
    if call["weight"].padded:
        raise Unpaddable("a convolution's weight has a varying size")
    node = redo_node(b, call, grad_output=b.fill(grad, 0), input=b.fill(x, 0))
    image, weight, bias = outputs(b, node)
    found = [Value(image, x.dims), Value(weight, call["weight"].dims), static_value(bias)]
    return [None if true is None else v for v, true in zip(found, call.true, strict=True)]
