"""Gathers and scatters: padded indices are made safe, and padded updates reach no valid element."""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.compiler.padding.builder import Builder, Value
from torchtpu.compiler.padding.layout import Dim, Layout, Unpaddable, extent, padded, size, sizes
from torchtpu.compiler.padding.reductions import conform
from torchtpu.compiler.padding.table import Call, redo, redo_node, rule

aten = torch.ops.aten


def safe(b: Builder, index: Value, dim: Dim) -> Value:
    """Return an index into `dim` that is 0 where it is padding, and counts from the front."""
    if index.dtype in (torch.bool, torch.uint8):
        raise Unpaddable("an index that is a mask: the size of the result depends on data")
    index = b.fill(index, 0)
    if not padded(dim):
        return index
    n = b.number(extent(dim))
    wrapped = b.emit(aten.add.Tensor, index, n)
    negative = b.emit(aten.lt.Scalar, index, 0)
    return b.value(index.dims, aten.where.self, negative, wrapped, index)


@rule("embedding")
def _embedding(b: Builder, call: Call) -> Value:
    weight: Value = b.lead(call["weight"], [0])
    index = safe(b, call["indices"], weight.dims[0])
    return redo(b, call, (*index.dims, *weight.dims[1:]), weight=weight, indices=index)


@rule("embedding_dense_backward")
def _embedding_backward(b: Builder, call: Call) -> Value:
    if call["scale_grad_by_freq"]:
        raise Unpaddable("scale_grad_by_freq counts the padding")
    grad: Value = call["grad_output"]
    index = b.fill(conform(b, call["indices"], grad.dims[:-1]), 0)
    (rows,) = b.bucket.layout(call.shape[:1])
    grad = b.fill(grad, 0, range(len(grad.dims) - 1))
    return redo(
        b, call, (rows, grad.dims[-1]), grad_output=grad, indices=index, num_weights=size(rows)
    )


@rule("index_select")
def _index_select(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    d = call.dim("dim", len(x.dims))
    x = b.lead(x, [d])
    index = safe(b, call["index"], x.dims[d])
    return redo(b, call, (*x.dims[:d], *index.dims, *x.dims[d + 1 :]), self=x, index=index)


class _Indices:
    """The indices of `index` and `index_put`, safe and with layouts that agree."""

    def __init__(self, b: Builder, call: Call) -> None:
        x: Value = call["self"]
        given = list(call["indices"]) + [None] * (len(x.dims) - len(call["indices"]))
        self.at = [d for d, index in enumerate(given) if index is not None]
        self.x = b.lead(x, self.at)
        self.found, self.dims = b.join([safe(b, given[d], self.x.dims[d]) for d in self.at])
        rest = [dim for d, dim in enumerate(self.x.dims) if d not in self.at]
        adjacent = self.at == list(range(self.at[0], self.at[-1] + 1))
        self.start = self.at[0] if adjacent else 0
        self.result: Layout = (*rest[: self.start], *self.dims, *rest[self.start :])

    def arguments(self) -> list[Value | None]:
        whole: list[Value | None] = [None] * (self.at[-1] + 1)
        for d, index in zip(self.at, self.found, strict=True):
            whole[d] = index
        return whole


@rule("index.Tensor", "_unsafe_index.Tensor")
def _index(b: Builder, call: Call) -> Value:
    indices = _Indices(b, call)
    return redo(b, call, indices.result, self=indices.x, indices=indices.arguments())


@rule("index_put", "_unsafe_index_put")
def _index_put(b: Builder, call: Call) -> Value:
    indices = _Indices(b, call)
    values = conform(b, call["values"], indices.result)
    mask = b.mask(indices.dims)
    if mask is None or call["accumulate"]:
        if mask is not None:
            values = _expanded(b, values, indices.result)
            along = range(indices.start, indices.start + len(indices.dims))
            values = b.fill(values, 0, along)
        args = {"self": indices.x, "indices": indices.arguments(), "values": values}
        return redo(b, call, indices.x.dims, **args)
    d, x = indices.at[0], indices.x
    indices.found[0] = _elsewhere(b, indices.found[0], mask, size(x.dims[d]), indices.dims)
    args = {"indices": indices.arguments(), "values": values}
    return _with_spare_row(b, call, x, d, args)


def _expanded(b: Builder, x: Value, layout: Layout) -> Value:
    """Return the tensor broadcast to the whole of `layout`."""
    return b.value(layout, aten.expand.default, x, sizes(layout))


def _elsewhere(b: Builder, index: Value, mask: Any, row: int, dims: Layout) -> Value:
    """Send the padding of an index to a row of its own."""
    return b.value(dims, aten.where.self, mask, index, b.constant(row, index.dtype))


def _with_spare_row(b: Builder, call: Call, x: Value, d: int, args: dict[str, Any]) -> Value:
    """Write the op on `x` with one more row along `d`, and drop that row from the result."""
    pads = [0, 0] * (len(x.dims) - 1 - d) + [0, 1]
    wide = b.emit(aten.constant_pad_nd.default, x, pads, 0)
    node = redo_node(b, call, self=Value(wide, x.dims), **args)
    return b.value(x.dims, aten.slice.Tensor, node, d, 0, size(x.dims[d]))


def _aligned(b: Builder, values: list[Value], d: int) -> list[Value]:
    """Make positions agree between tensors that an op pairs by index in every dim but `d`."""
    for i in range(len(values[0].dims)):
        if len({v.dims[i] for v in values}) > 1 or i == d:
            values = [b.lead(v, [i]) for v in values]
        if i != d and size(values[1].dims[i]) > size(values[0].dims[i]):
            raise Unpaddable("the index's bucket is larger than the tensor it points into")
    return values


@rule("gather")
def _gather(b: Builder, call: Call) -> Value:
    x, index = call["self"], call["index"]
    if not x.dims:
        return redo(b, call, index.dims, index=b.fill(index, 0))
    d = call.dim("dim", len(x.dims))
    x = b.lead(x, [d])
    rest = [v.dims[i] for v in (x, index) for i in range(len(x.dims)) if i != d]
    if any(map(padded, rest)):
        x, index = _aligned(b, [x, index], d)
    index = safe(b, index, x.dims[d])
    return redo(b, call, index.dims, self=x, index=index)


@rule("scatter", "scatter_add", "scatter_reduce")
def _scatter(b: Builder, call: Call) -> Value:
    x, index, source = call["self"], call["index"], call.get("src")
    d = call.dim("dim", len(x.dims))
    if isinstance(source, Value):
        x, index, source = _aligned(b, [x, index, source], d)
    else:
        x, index = _aligned(b, [x, index], d)
    live = [i for i, dim in enumerate(index.dims) if i == d or dim != x.dims[i]]
    index = safe(b, index, x.dims[d])
    args = {} if source is None else {"src": source}
    mask = b.mask(index.dims, live)
    if mask is None:
        return redo(b, call, x.dims, self=x, index=index, **args)
    index = _elsewhere(b, index, mask, size(x.dims[d]), index.dims)
    return _with_spare_row(b, call, x, d, {"index": index, **args})


@rule("index_add")
def _index_add(b: Builder, call: Call) -> Value:
    x, index, source = call["self"], call["index"], call["source"]
    d = call.dim("dim", len(x.dims))
    x = b.lead(x, [d])
    layout = (*x.dims[:d], *index.dims, *x.dims[d + 1 :])
    source = b.fill(conform(b, source, layout), 0, [d])
    return redo(b, call, x.dims, self=x, index=safe(b, index, x.dims[d]), source=source)
