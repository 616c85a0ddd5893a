"""Reductions, softmax, sorting and products: padding is overwritten before elements meet."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from torchtpu.compiler.padding.builder import Builder, Value
from torchtpu.compiler.padding.layout import (
    Dim,
    Layout,
    Unpaddable,
    extent,
    padded,
    product_of,
    size,
)
from torchtpu.compiler.padding.table import Call, outputs, redo, redo_node, rule

aten = torch.ops.aten


def lowest(dtype: torch.dtype) -> float:
    """Return the number that no element of a dtype is below."""
    if dtype == torch.bool:
        return 0
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> float:
    """Return the number that no element of a dtype is above."""
    if dtype == torch.bool:
        return 1
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def _reduced(layout: Layout, dims: list[int], keepdim: bool) -> Layout:
    kept: list[Dim] = []
    for d, dim in enumerate(layout):
        if d not in dims:
            kept.append(dim)
        elif keepdim:
            kept.append(())
    return tuple(kept)


def _reduce(b: Builder, call: Call, identity: float) -> Value:
    x: Value = call["self"]
    dims = call.dims(len(x.dims))
    kept = _reduced(x.dims, dims, bool(call.get("keepdim")))
    return redo(b, call, kept, self=b.fill(x, identity, dims))


@rule("sum", "nansum", "any", "count_nonzero")
def _with_zero(b: Builder, call: Call) -> Value:
    return _reduce(b, call, 0)


@rule("prod", "all")
def _with_one(b: Builder, call: Call) -> Value:
    return _reduce(b, call, 1)


@rule("logsumexp")
def _with_minus_infinity(b: Builder, call: Call) -> Value:
    return _reduce(b, call, -math.inf)


@rule("amax", "max.default")
def _with_lowest(b: Builder, call: Call) -> Value:
    return _reduce(b, call, lowest(call["self"].dtype))


@rule("amin", "min.default")
def _with_highest(b: Builder, call: Call) -> Value:
    return _reduce(b, call, highest(call["self"].dtype))


@rule("linalg_vector_norm")
def _vector_norm(b: Builder, call: Call) -> Value:
    return _reduce(b, call, 0 if call["ord"] >= 0 else math.inf)


@rule("aminmax")
def _both_ends(b: Builder, call: Call) -> list[Value]:
    x: Value = call["self"]
    dims = call.dims(len(x.dims))
    kept = _reduced(x.dims, dims, bool(call["keepdim"]))
    least = b.fill(x, highest(x.dtype), dims)
    most = b.fill(x, lowest(x.dtype), dims)
    return [
        b.value(kept, aten.amin.default, least, dims, call["keepdim"]),
        b.value(kept, aten.amax.default, most, dims, call["keepdim"]),
    ]


@rule("max.dim", "min.dim", "argmax", "argmin")
def _with_index(b: Builder, call: Call) -> Any:
    """Ties take the first index, so a valid one comes before the padding."""
    x: Value = call["self"]
    if call["dim"] is None and call["keepdim"]:
        raise Unpaddable("an index into the flattened tensor, with keepdim")
    if call["dim"] is None:
        call = replace(call, args={**call.args, "dim": 0})
        x = b.view(x, [product_of(map(extent, x.dims))])
    d = call.dim("dim", len(x.dims))
    x = b.lead(x, [d])
    least = "min" in call.target._schema.name
    x = b.fill(x, highest(x.dtype) if least else lowest(x.dtype), [d])
    dims = _reduced(x.dims, [d], bool(call["keepdim"]))
    node = redo_node(b, call, self=x)
    several = isinstance(node.meta["val"], (tuple, list))
    return [Value(n, dims) for n in outputs(b, node)] if several else Value(node, dims)


@rule("_softmax", "_log_softmax", "_safe_softmax")
def _softmax(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    d = call.dim("dim", len(x.dims))
    return redo(b, call, x.dims, self=b.fill(x, -math.inf, [d]))


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(b: Builder, call: Call) -> Value:
    (grad, result), dims = b.join([call["grad_output"], call["output"]])
    d = call.dim("dim", len(dims))
    grad, result = b.fill(grad, 0, [d]), b.fill(result, 0, [d])
    return redo(b, call, dims, grad_output=grad, output=result)


# Sorting: padding goes last, and a stable sort keeps valid equals before it.


def _sorted(b: Builder, x: Value, d: int, descending: bool) -> tuple[Value, Value, Value]:
    x = b.lead(x, [d])
    if descending:
        number = lowest(x.dtype)
    else:
        number = math.nan if x.dtype.is_floating_point else highest(x.dtype)
    filled = b.fill(x, number, [d])
    node = b.emit(aten.sort.stable, filled, stable=True, dim=d, descending=descending)
    values, indices = (Value(n, x.dims) for n in outputs(b, node))
    return x, values, indices


@rule("sort")
def _sort(b: Builder, call: Call) -> list[Value]:
    x: Value = call["self"]
    d = call.dim("dim", len(x.dims))
    if not padded(x.dims[d]):
        return [Value(n, x.dims) for n in outputs(b, redo_node(b, call))]
    return list(_sorted(b, x, d, call["descending"])[1:])


@rule("argsort")
def _argsort(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    return _sorted(b, x, call.dim("dim", len(x.dims)), call["descending"])[2]


@rule("topk")
def _topk(b: Builder, call: Call) -> list[Value]:
    x: Value = call["self"]
    d = call.dim("dim", len(x.dims))
    (count,) = b.bucket.layout([call["k"]])
    if not padded(x.dims[d]):
        dims = (*x.dims[:d], count, *x.dims[d + 1 :])
        return [Value(n, dims) for n in outputs(b, redo_node(b, call, k=size(count)))]
    x, values, indices = _sorted(b, x, d, call["largest"])
    dims = (*x.dims[:d], count, *x.dims[d + 1 :])
    first = [b.emit(aten.slice.Tensor, v, d, 0, size(count)) for v in (values, indices)]
    return [Value(n, dims) for n in first]


# Products: padding of the summed dimension is zero in both factors, as it may hold NaN.


def product(b: Builder, x: Value, y: Value, xd: int, yd: int) -> tuple[Value, Value]:
    """Return two factors ready to be summed over dimension `xd` of one and `yd` of the other."""
    if x.dims[xd] != y.dims[yd]:
        y = b.relayout(y, yd % len(y.dims), x.dims[xd])
    return b.fill(x, 0, [xd % len(x.dims)]), b.fill(y, 0, [yd % len(y.dims)])


@rule("mm", "dot", "vdot", "mv")
def _matrix_product(b: Builder, call: Call) -> Value:
    names = list(call.args)
    x, y = call[names[0]], call[names[1]]
    yd = 0
    x, y = product(b, x, y, len(x.dims) - 1, yd)
    return redo(b, call, (*x.dims[:-1], *y.dims[1:]), **{names[0]: x, names[1]: y})


@rule("_cdist_forward")
def _distances(b: Builder, call: Call) -> Value:
    """Coordinates that are zero in both points add nothing to their distance."""
    x, y = call["x1"], call["x2"]
    rank = len(x.dims)
    for d in range(rank - 2):
        y = b.relayout(y, d, x.dims[d])
    x, y = product(b, x, y, rank - 1, rank - 1)
    return redo(b, call, (*x.dims[:-1], y.dims[-2]), x1=x, x2=y)


@rule("bmm")
def _batched_product(b: Builder, call: Call) -> Value:
    x, y = _batched(b, call["self"], call["mat2"])
    return redo(b, call, (*x.dims[:2], y.dims[2]), self=x, mat2=y)


def _batched(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    return product(b, x, b.relayout(y, 0, x.dims[0]), 2, 1)


@rule("addmm", "addmv", "baddbmm", "_addmm_activation")
def _product_and_sum(b: Builder, call: Call) -> Value:
    first, second = [
        n for n in ("mat1", "mat", "batch1", "mat2", "vec", "batch2") if n in call.args
    ]
    x, y = call[first], call[second]
    if first == "batch1":
        x, y = _batched(b, x, y)
        dims: Layout = (*x.dims[:2], y.dims[2])
    else:
        x, y = product(b, x, y, 1, 0)
        dims = (*x.dims[:1], *y.dims[1:])
    bias = conform(b, call["self"], dims)
    return redo(b, call, dims, **{"self": bias, first: x, second: y})


@rule("addr", "ger", "outer")
def _outer(b: Builder, call: Call) -> Value:
    x, y = call.get("vec1") or call["self"], call["vec2"]
    dims = (*x.dims, *y.dims)
    if call.get("vec1") is None:
        return redo(b, call, dims)
    return redo(b, call, dims, self=conform(b, call["self"], dims))


def conform(b: Builder, x: Value, layout: Layout) -> Value:
    """Return a tensor that broadcasts to `layout`, its dims lying likewise."""
    offset = len(layout) - len(x.dims)
    for d, dim in enumerate(x.dims):
        if dim != ():
            x = b.relayout(x, d, layout[d + offset])
    return x
