"""Elementwise ops, factories and scans: padding stays where it is."""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.compiler.padding.builder import Builder, Value
from torchtpu.compiler.padding.layout import Expr, Unpaddable, is_size, sizes
from torchtpu.compiler.padding.table import Call, outputs, redo, redo_node, rule

aten = torch.ops.aten

# Overloads that take numbers, and those that take the same as 0-dim tensors.
_OF_TENSORS = {
    "Scalar": "Tensor",
    "Tensor_Scalar": "Tensor_Tensor",
    "Scalar_Tensor": "Tensor_Tensor",
    "ScalarOther": "self",
    "ScalarSelf": "self",
    "Scalar_out": "Tensor",
    "Scalar_mode": "Tensor_mode",
}


@rule(
    "alias", "detach", "clone", "contiguous", "_to_copy", "lift_fresh_copy", "lift_fresh",
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like",
    "randint_like", "bernoulli.default", "bernoulli.p", "fill", "copy", "native_dropout",
    "native_dropout_backward", "masked_fill", "where.self", "where.ScalarOther",
    "where.ScalarSelf", "where.Scalar", "_prelu_kernel", "_prelu_kernel_backward",
    "prims::convert_element_type", "_conj", "resolve_conj", "resolve_neg", "_neg_view",
    "bucketize.Tensor", "gelu_backward", "rrelu_with_noise_functional", "normal_functional",
    "exponential", "clamp_min.Tensor", "nan_to_num", "addcmul", "addcdiv", "dropout",
)  # fmt: skip
def pointwise(b: Builder, call: Call) -> Any:
    """Broadcast the layouts; elements meet only elements of the same index."""
    target, args = call.target, dict(call.args)
    boundaries = args.pop("boundaries", None)
    if boundaries is not None and boundaries.padded:
        raise Unpaddable("a varying number of boundaries")
    for name, value in args.items():
        if is_size(value):
            args[name] = Value(b.number(value), ())
            target = _tensor_overload(call, target)
    if target is not call.target:
        args = {k: _as_tensor(b, v, k) for k, v in args.items()}
    names = [name for name, value in args.items() if isinstance(value, Value)]
    moved, dims = b.join([args[name] for name in names])
    args.update(zip(names, moved, strict=True))
    if boundaries is not None:
        args["boundaries"] = boundaries
    node = redo_node(b, Call(node=call.node, args=args, true=call.true), target)
    several = isinstance(node.meta["val"], (tuple, list))
    return [Value(n, dims) for n in outputs(b, node)] if several else Value(node, dims)


def _tensor_overload(call: Call, target: Any) -> Any:
    name = _OF_TENSORS.get(target._overloadname)
    if name is None:
        return target
    packet = target.overloadpacket
    if name not in packet.overloads():
        raise Unpaddable("takes a size that varies as a number, and has no overload for tensors")
    return getattr(packet, name)


def _as_tensor(b: Builder, value: Any, name: str) -> Any:
    if name in {"self", "other", "exponent"} and isinstance(value, (int, float)):
        dtype = torch.int64 if isinstance(value, int) else torch.float32
        return Value(b.constant(value, dtype), ())
    return value


@rule("clamp.default", "clamp_min.default", "clamp_max.default")
def _clamp(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    limits = {"min": aten.maximum.default, "max": aten.minimum.default}
    if not any(is_size(call.get(name)) for name in limits):
        return redo(b, call, x.dims)
    for name, op in limits.items():
        limit = call.get(name)
        if limit is not None:
            number = b.number(limit) if is_size(limit) else None
            number = number or b.constant(limit, x.dtype)
            x = b.value(x.dims, op, x, b.emit(aten._to_copy.default, number, dtype=x.dtype))
    return x


# Factories.


@rule(
    "zeros", "ones", "empty.memory_format", "rand", "randn", "full", "randint", "new_zeros",
    "new_ones", "new_empty", "new_full", "randint.low", "empty_permuted",
)  # fmt: skip
def _factory(b: Builder, call: Call) -> Value:
    dims = b.bucket.layout(call.shape)
    value = call.get("fill_value")
    changes: dict[str, Any] = {"size": sizes(dims)}
    if is_size(value):
        number = b.emit(aten._to_copy.default, b.number(value), dtype=call.true.dtype)
        return b.value(dims, aten.expand.default, number, sizes(dims))
    return redo(b, call, dims, **changes)


@rule("empty_strided", "new_empty_strided")
def _empty_strided(b: Builder, call: Call) -> Value:
    dims = b.bucket.layout(call.shape)
    kind = {"dtype": call.true.dtype, "device": call.true.device}
    return b.value(dims, aten.empty.memory_format, sizes(dims), **kind)


@rule("scalar_tensor")
def _scalar_tensor(b: Builder, call: Call) -> Value:
    return b.value((), aten._to_copy.default, b.number(call["s"]), dtype=call.true.dtype)


@rule("arange", "prims::iota")
def _arange(b: Builder, call: Call) -> Value:
    start: Expr = call.get("start", 0)
    step: Expr = call.get("step", 1)
    (dim,) = b.bucket.layout(call.shape)
    n = sizes([dim])[0]
    kind = {"dtype": call.true.dtype, "device": call.true.device}
    if not is_size(start) and not is_size(step):
        return b.value([dim], aten.arange.start_step, start, start + step * n, step, **kind)
    node = b.positions(n)
    for value, op in ((step, aten.mul.Tensor), (start, aten.add.Tensor)):
        node = b.emit(op, node, b.number(value) if is_size(value) else value)
    return b.value([dim], aten._to_copy.default, node, dtype=call.true.dtype)


@rule("eye", "eye.m")
def _eye(b: Builder, call: Call) -> Value:
    dims = b.bucket.layout(call.shape)
    n, m = sizes(dims)
    kind = {"dtype": call.true.dtype, "device": call.true.device}
    return b.value(dims, aten.eye.m, n, m, **kind)


@rule("tril", "triu")
def _triangle(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    x = b.lead(x, [len(x.dims) - 2, len(x.dims) - 1])
    return redo(b, call, x.dims, self=x)


# Scans: padding adds nothing to the elements after it.

_START = {"cumsum": 0.0, "cumprod": 1.0, "logcumsumexp": float("-inf")}


@rule("cumsum", "cumprod", "logcumsumexp")
def _scan(b: Builder, call: Call) -> Value:
    x: Value = call["self"]
    d = call.dim("dim", len(x.dims))
    start = _START[call.target._schema.name.removeprefix("aten::")]
    return redo(b, call, x.dims, self=b.fill(x, start, [d]))


@rule("cummax", "cummin")
def _scan_with_indices(b: Builder, call: Call) -> Any:
    x: Value = call["self"]
    x = b.lead(x, [call.dim("dim", len(x.dims))])
    return [Value(n, x.dims) for n in outputs(b, redo_node(b, call, self=x))]


@rule("copy_")
def _copy_back(b: Builder, call: Call) -> Value:
    """A mutated input: exact where it is not padded."""
    x: Value = call["self"]
    if x.padded:
        raise Unpaddable("an input that is written has a padded dimension")
    (x, source), dims = b.join([x, call["src"]])
    return redo(b, call, dims, self=x, src=source)
