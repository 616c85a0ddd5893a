"""Pooling and resampling: row by row, and maxima and averages of images of varying size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from torchtpu.compiler.padding.builder import Builder, Value
from torchtpu.compiler.padding.layout import Unpaddable, extent, padded, size
from torchtpu.compiler.padding.nn import trailing
from torchtpu.compiler.padding.reductions import lowest
from torchtpu.compiler.padding.table import Call, outputs, redo, redo_node, rule

aten = torch.ops.aten

_BY_ROWS = (
    "max_pool3d_with_indices", "max_pool3d_with_indices_backward", "avg_pool1d", "avg_pool3d",
    "avg_pool3d_backward", "adaptive_avg_pool1d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d",
    "adaptive_max_pool2d_backward", "adaptive_max_pool3d", "adaptive_max_pool3d_backward",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_nearest1d_backward",
    "upsample_nearest2d_backward", "upsample_nearest3d_backward", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "_upsample_nearest_exact1d_backward",
    "_upsample_nearest_exact2d_backward", "_upsample_nearest_exact3d_backward",
    "upsample_bilinear2d", "upsample_bilinear2d_backward", "upsample_bicubic2d",
    "upsample_bicubic2d_backward", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
    "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
    "replication_pad1d", "replication_pad2d", "replication_pad3d", "replication_pad1d_backward",
    "replication_pad2d_backward", "replication_pad3d_backward",
)  # fmt: skip

for _name in _BY_ROWS:
    rule(_name)(trailing(next(int(c) for c in _name if c.isdigit())))


def _image(b: Builder, x: Value, number: float) -> Value:
    """Return an image with valid elements first and `number` after them."""
    dims = [len(x.dims) - 2, len(x.dims) - 1]
    return b.fill(b.lead(x, dims), number, dims)


@rule("max_pool2d_with_indices")
def _max_pool(b: Builder, call: Call) -> list[Value]:
    x: Value = call["self"]
    x = _image(b, x, lowest(x.dtype))
    dims = (*x.dims[:-2], *b.bucket.layout(call.shapes[0][-2:]))
    values, indices = outputs(b, redo_node(b, call, self=x))
    if padded(x.dims[-1]):  # an index counts rows of the true width
        width = b.number(extent(x.dims[-1]))
        indices = _rewritten(b, indices, size(x.dims[-1]), width)
    return [Value(values, dims), Value(indices, dims)]


@rule("max_pool2d_with_indices_backward")
def _max_pool_backward(b: Builder, call: Call) -> Value:
    x: Value = b.lead(call["self"], [len(call["self"].dims) - 2, len(call["self"].dims) - 1])
    (grad, indices), dims = b.join([call["grad_output"], call["indices"]])
    for d in range(len(dims) - 2):
        grad, indices = (b.relayout(v, d, x.dims[d]) for v in (grad, indices))
    grad, indices = (b.fill(_image(b, v, 0), 0) for v in (grad, indices))
    if padded(x.dims[-1]):
        width = b.number(extent(x.dims[-1]))
        indices = replace(indices, node=_rewritten(b, indices.node, width, size(x.dims[-1])))
    return redo(b, call, x.dims, self=x, grad_output=grad, indices=indices)


def _rewritten(b: Builder, indices: Node, old: Any, new: Any) -> Node:
    """Return indices into rows of width `old` as indices into rows of width `new`."""
    divide = aten.floor_divide.default
    row = b.emit(divide, indices, old)
    kind = aten.remainder.Tensor if isinstance(old, Node) else aten.remainder.Scalar
    column = b.emit(kind, indices, old)
    return b.emit(aten.add.Tensor, b.emit(aten.mul.Tensor, row, new), column)


def _fixed_divisor(call: Call, x: Value) -> None:
    """Refuse averages whose divisor depends on where the image ends."""
    if not any(map(padded, x.dims[-2:])):
        return
    border = any(call["padding"]) and not call["count_include_pad"]
    if call["ceil_mode"] or (border and call["divisor_override"] is None):
        raise Unpaddable("an average over windows that are cut at a varying border")


@rule("avg_pool2d")
def _average_pool(b: Builder, call: Call) -> Value:
    _fixed_divisor(call, call["self"])
    x = _image(b, call["self"], 0)
    return redo(b, call, (*x.dims[:-2], *b.bucket.layout(call.shape[-2:])), self=x)


@rule("avg_pool2d_backward")
def _average_pool_backward(b: Builder, call: Call) -> Value:
    x: Value = b.lead(call["self"], [len(call["self"].dims) - 2, len(call["self"].dims) - 1])
    _fixed_divisor(call, x)
    grad: Value = call["grad_output"]
    for d in range(len(x.dims) - 2):
        grad = b.relayout(grad, d, x.dims[d])
    return redo(b, call, x.dims, self=x, grad_output=_image(b, grad, 0))
