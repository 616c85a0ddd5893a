"""Ops that move elements: views, slices, concatenations, flips, repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.fx import Node

from torchtpu.compiler.padding.builder import Builder, Value
from torchtpu.compiler.padding.layout import (
    ONE,
    ZERO,
    Dim,
    Expr,
    Unpaddable,
    canonical,
    expression_of,
    extent,
    padded,
    product_of,
    same,
    size,
    sizes,
    static_dim,
)
from torchtpu.compiler.padding.table import Call, redo, rule, true_shape

aten = torch.ops.aten


@rule(
    "view.default",
    "reshape",
    "_unsafe_view",
    "flatten",
    "unflatten",
    "_reshape_alias",
    "view_copy.default",
    "_reshape_copy",
)
def _view(b: Builder, call: Call) -> Value:
    return b.view(call["self"], call.shape)


@rule("as_strided")
def _as_strided(b: Builder, call: Call) -> Value:
    """Exact only where it is a reshape of a contiguous tensor."""
    source = next(n for n in call.node.all_input_nodes).meta["val"]
    dense = source.is_contiguous() and call.true.is_contiguous()
    whole = same(product_of(true_shape(source)), product_of(call.shape))
    if not dense or not whole or call["storage_offset"]:
        raise Unpaddable("strides into a tensor of varying size")
    return b.view(call["self"], call.shape)


@rule("permute")
def _permute(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    return redo(b, call, [x.dims[d] for d in call["dims"]])


@rule("transpose.int", "t", "numpy_T", "swapaxes", "mT")
def _transpose(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    dims = list(x.dims)
    if len(dims) >= 2:
        d0, d1 = call.get("dim0", -1), call.get("dim1", -2)
        dims[d0], dims[d1] = dims[d1], dims[d0]
    return redo(b, call, dims)


@rule("unsqueeze")
def _unsqueeze(b: Builder, call: Call) -> Value:
    dims = list(call["self"].dims)
    dims.insert(call["dim"] % (len(dims) + 1), ())
    return redo(b, call, dims)


@rule("squeeze")
def _squeeze(b: Builder, call: Call) -> Value:
    return b.view(call["self"], call.shape)


@rule("expand")
def _expand(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    offset = len(call.shape) - len(x.dims)
    dims: list[Dim] = []
    for d, n in enumerate(call.shape):
        old = x.dims[d - offset] if d >= offset else ()
        dims.append(b.bucket.dim(n) if old == () else old)
    return redo(b, call, dims, size=sizes(dims))


@rule("repeat")
def _repeat(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    offset = len(call["repeats"]) - len(x.dims)
    counts = b.bucket.layout(call["repeats"])
    old = [*[()] * offset, *x.dims]
    dims = [canonical((*count, *dim)) for count, dim in zip(counts, old, strict=True)]
    return redo(b, call, dims, repeats=[size(count) for count in counts])


@rule("diagonal")
def _diagonal(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    rank = len(x.dims)
    pair = [call.dim("dim1", rank), call.dim("dim2", rank)]
    x = b.lead(x, pair)
    rest = [dim for d, dim in enumerate(x.dims) if d not in pair]
    return redo(b, call, (*rest, b.bucket.dim(call.shape[-1])), self=x)


@rule("unfold")
def _unfold(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    d = call.dim("dimension", len(x.dims))
    x = b.lead(x, [d])
    windows, each = b.bucket.layout([call.shape[d], call.shape[-1]])
    return redo(b, call, (*x.dims[:d], windows, *x.dims[d + 1 :], each), self=x)


# Slices.


@rule("slice.Tensor")
def _slice(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    d = call.dim("dim", len(x.dims))
    return cut(b, x, d, call["start"], call["step"], call.shape[d])


def cut(b: Builder, x: Value, d: int, start: Expr, step: int, count: Expr) -> Value:
    """Return `count` elements of dimension `d` from `start` (may be negative) by `step`."""
    n = extent(x.dims[d])
    start = _from_front(0 if start is None else start, n)
    if same(start, ZERO) and step == 1 and same(count, n):
        return x
    x = b.lead(x, [d])
    dim = b.bucket.dim(count)
    if start.is_Integer:
        end = int(start) + step * (size(dim) - 1) + 1
        if end <= size(x.dims[d]):
            dims = (*x.dims[:d], dim, *x.dims[d + 1 :])
            return b.value(dims, aten.slice.Tensor, x, d, int(start), end, step)
    index = b.positions(size(dim))
    if step != 1:
        index = b.emit(aten.mul.Tensor, index, step)
    return b.pick(x, d, _plus(b, index, start), dim)


def _from_front(start: Expr, n: Expr) -> Expr:
    start = expression_of(start)
    if start.is_Integer:
        if start >= 0:
            return start
        start = start + n
    elif start.could_extract_minus_sign():
        raise Unpaddable(f"a slice from {start}, whose sign is not known")
    return start


def _plus(b: Builder, index: Node, number: Expr) -> Node:
    number = expression_of(number)
    if number == 0:
        return index
    return b.emit(aten.add.Tensor, index, int(number) if number.is_Integer else b.number(number))


@rule("select.int")
def _select(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    d = call.dim("dim", len(x.dims))
    x = b.lead(x, [d])
    index = _from_front(call["index"], extent(x.dims[d]))
    dims = (*x.dims[:d], *x.dims[d + 1 :])
    if index.is_Integer:
        return redo(b, call, dims, self=x, dim=d, index=int(index))
    position = b.reshape(b.number(index), [1])
    one = b.pick(x, d, position, ())
    return b.value(dims, aten.select.int, one, d, 0)


@rule(
    "split.Tensor",
    "split_with_sizes",
    "unbind",
    "chunk",
    "split.sizes",
    "unsafe_split",
    "unsafe_split_with_sizes",
)
def _split(b: Builder, call: Call) -> list[Value]:
    x: Value = call["self"]
    d = call.dim("dim", len(x.dims))
    start: Expr = ZERO
    parts = []
    gone = len(call.true[0].shape) < len(x.dims) if call.true else False
    for part in call.true:
        n = ONE if gone else true_shape(part)[d]
        piece = cut(b, x, d, start, 1, n)
        if gone:
            dims = (*x.dims[:d], *x.dims[d + 1 :])
            piece = b.value(dims, aten.select.int, piece, d, 0)
        parts.append(piece)
        start = start + n
    return parts


# Concatenations.


@rule("cat")
def _cat(b: Builder, call: Call) -> Value:
    values = [v for v in call["tensors"] if not _empty_vector(v)]
    d = call.dim("dim", len(values[0].dims))
    values, dims = join_but(b, values, d)
    along = [v.dims[d] for v in values]
    if all(dim == along[0] for dim in along) and padded(along[0]):
        dim = canonical([*static_dim(len(along)), *along[0]])
        return b.value((*dims[:d], dim, *dims[d + 1 :]), aten.cat.default, values, d)
    values = [b.lead(v, [d]) for v in values]
    along = [v.dims[d] for v in values]
    total = b.bucket.dim(call.shape[d])
    out = (*dims[:d], total, *dims[d + 1 :])
    whole = b.emit(aten.cat.default, values, d)
    if not any(padded(dim) for dim in along[:-1]) and sum(map(size, along)) == size(total):
        return Value(whole, out)
    glued = Value(whole, (*dims[:d], static_dim(sum(map(size, along))), *dims[d + 1 :]))
    return b.pick(glued, d, _glue_index(b, along, size(total)), total)


def _empty_vector(v: Value) -> bool:
    return list(v.fake.shape) == [0]


def _glue_index(b: Builder, along: list[Dim], n: int) -> Node:
    """Return where each true index lies in pieces laid one after the other with their padding."""
    index = b.positions(n)
    end: Expr = ZERO
    for dim in along[:-1]:
        end = end + extent(dim)
        if padded(dim):
            gap = expression_of(size(dim)) - extent(dim)
            behind = b.emit(aten.ge.Tensor, b.positions(n), b.number(end))
            jump = b.emit(aten.mul.Tensor, behind, b.number(gap))
            index = b.emit(aten.add.Tensor, index, jump)
    return index


def join_but(b: Builder, values: list[Value], d: int) -> tuple[list[Value], tuple[Dim, ...]]:
    """Make the layouts of tensors agree in every dimension but `d`."""
    dims = max(values, key=lambda v: math.prod(v.fake.shape)).dims
    moved = []
    for v in values:
        for i, dim in enumerate(dims):
            if i != d:
                v = b.relayout(v, i, dim)
        moved.append(v)
    return moved, dims


@rule("stack")
def _stack(b: Builder, call: Call) -> Value:
    values = call["tensors"]
    d = call.dim("dim", len(values[0].dims) + 1)
    values, dims = join_but(b, values, -1)
    return redo(b, call, (*dims[:d], static_dim(len(values)), *dims[d:]), tensors=values)


@rule("flip")
def _flip(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    for d in [d % len(x.dims) for d in call["dims"]]:
        x = b.lead(x, [d])
        last = _plus(
            b, b.emit(aten.neg.default, b.positions(size(x.dims[d]))), extent(x.dims[d]) - 1
        )
        x = b.pick(x, d, last, x.dims[d])
    return x


@rule("constant_pad_nd")
def _pad(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    rank, pads = len(x.dims), call["pad"]
    for i in range(len(pads) // 2):
        before, after = map(expression_of, pads[2 * i : 2 * i + 2])
        if before != 0 or after != 0:
            x = _pad_dim(b, x, rank - 1 - i, before, after, call["value"])
    return x


def _pad_dim(b: Builder, x: Value, d: int, before: Expr, after: Expr, number: float) -> Value:
    x = b.lead(x, [d])
    n = extent(x.dims[d])
    dim = b.bucket.dim(n + before + after)
    index = _plus(b, b.positions(size(dim)), -before)
    moved = b.pick(x, d, index, dim)
    inside = b.emit(
        aten.logical_and.default,
        b.emit(aten.ge.Scalar, index, 0),
        b.emit(aten.lt.Tensor, index, b.number(n)),
    )
    shape = [size(dim) if i == d else 1 for i in range(len(x.dims))]
    inside = b.reshape(inside, shape)
    return b.value(moved.dims, aten.where.self, inside, moved, b.constant(number, x.dtype))


@rule("slice_scatter")
def _slice_scatter(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    d = call.dim("dim", len(x.dims))
    (x, source), _ = join_but(b, [x, call["src"]], d)
    return put(b, b.lead(x, [d]), b.lead(source, [d]), d, call["start"], call["step"])


@rule("slice_backward")
def _slice_backward(b: Builder, call: Call) -> Value:
    grad: Value = call["grad_output"]
    d = call.dim("dim", len(grad.dims))
    grad = b.lead(grad, [d])
    zeros = _zeros(b, grad, [*grad.dims[:d], b.bucket.dim(call.shape[d]), *grad.dims[d + 1 :]])
    return put(b, zeros, grad, d, call["start"], call["step"])


@rule("select_backward")
def _select_backward(b: Builder, call: Call) -> Value:
    grad: Value = call["grad_output"]
    d = call.dim("dim", len(grad.dims) + 1)
    one = (*grad.dims[:d], (), *grad.dims[d:])
    grad = b.value(one, aten.unsqueeze.default, grad, d)
    zeros = _zeros(b, grad, [*one[:d], b.bucket.dim(call.shape[d]), *one[d + 1 :]])
    return put(b, zeros, grad, d, call["index"], 1)


def _zeros(b: Builder, like: Value, dims: Sequence[Dim]) -> Value:
    kind = {"dtype": like.dtype, "device": like.fake.device}
    return b.value(dims, aten.zeros.default, sizes(dims), **kind)


def put(b: Builder, x: Value, source: Value, d: int, start: Expr, step: int) -> Value:
    """Return `x` with `source` at every `step`th element of dimension `d` from `start` on."""
    start = _from_front(0 if start is None else start, extent(x.dims[d]))
    index = _plus(b, b.positions(size(x.dims[d])), -start)
    end = b.number(extent(source.dims[d]) * step)
    inside = b.emit(
        aten.logical_and.default,
        b.emit(aten.ge.Scalar, index, 0),
        b.emit(aten.lt.Tensor, index, end),
    )
    if step != 1:
        on = b.emit(aten.eq.Scalar, b.emit(aten.remainder.Scalar, index, step), 0)
        inside = b.emit(aten.logical_and.default, inside, on)
        index = b.emit(aten.floor_divide.default, index, step)
    moved = b.pick(source, d, index, x.dims[d])
    inside = b.reshape(inside, [size(x.dims[d]) if i == d else 1 for i in range(len(x.dims))])
    return b.value(x.dims, aten.where.self, inside, moved, x)


@rule("select_scatter")
def _select_scatter(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    d = call.dim("dim", len(x.dims))
    source = call["src"]
    source = b.value((*source.dims[:d], (), *source.dims[d:]), aten.unsqueeze.default, source, d)
    (x, source), _ = join_but(b, [x, source], d)
    return put(b, b.lead(x, [d]), source, d, call["index"], 1)
