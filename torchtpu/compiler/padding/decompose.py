"""Ops without a rule of their own, as graphs of ops that have one, traced with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from torchtpu.compiler.padding import attention
from torchtpu.compiler.padding.layout import Unpaddable
from torchtpu.compiler.padding.table import op_name
from torchtpu.private.torch import (
    decomposition_table,
    detect_fake_mode,
    enable_python_dispatcher,
    pytree,
)

Tensor = Any  # torch.Tensor, of symbolic sizes: most calls on one return Any
_OURS: dict[str, Callable[..., Any]] = dict(attention.DECOMPOSITIONS)


def _decomposition(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _OURS.update(dict.fromkeys(names, function))
        return function

    return register


def decompose(node: Node) -> tuple[GraphModule, list[Node]] | None:
    """Return an op as a graph of simpler ops, and the nodes that are its inputs; None: no way."""
    function = _function(node.target)
    if function is None:
        return None
    flat, spec = pytree.tree_flatten((node.args, node.kwargs))
    inputs = [leaf for leaf in flat if isinstance(leaf, Node)]

    def call(*values: Any) -> Any:
        given = iter(values)
        leaves = [next(given) if isinstance(leaf, Node) else leaf for leaf in flat]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        result = function(*args, **kwargs)
        return tuple(result) if isinstance(result, tuple) else result  # no named tuples

    graph = _traced(call, [n.meta["val"] for n in inputs])
    if any(n.target == node.target for n in graph.graph.nodes):
        return None
    return graph, inputs


def _function(target: Any) -> Callable[..., Any] | None:
    name = op_name(target)
    found = _OURS.get(name) or _OURS.get(name.rpartition(".")[0]) or decomposition_table.get(target)
    if found is None and getattr(target, "_can_decompose", lambda: False)():
        return lambda *args, **kwargs: target.decompose(*args, **kwargs)
    return found


def _traced(function: Callable[..., Any], values: list[Any]) -> GraphModule:
    mode: Any = detect_fake_mode(values)
    try:
        with mode, torch.no_grad(), enable_python_dispatcher():
            return make_fx(function)(*values)
    except Unpaddable:
        raise
    except Exception as error:  # torch's decompositions raise whatever they like
        raise Unpaddable(f"its decomposition fails: {error}") from error


# Ours: where torch has none, or one that ends in the op itself.


def _count(x: Tensor, dims: list[int]) -> Any:
    count: Any = 1
    for d in dims:
        count = count * x.shape[d]
    return count


def _dims(x: Tensor, dim: list[int] | int | None) -> list[int]:
    if dim is None or dim == []:
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else dim


def _wide(x: Tensor) -> Tensor:
    half = x.dtype in (torch.float16, torch.bfloat16)
    return x.to(torch.float32) if half else x


@_decomposition("mean")
def mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum over the true number of elements."""
    x = x if dtype is None else x.to(dtype)
    dims = _dims(x, dim)
    return (_wide(x).sum(dims, keepdim) / _count(x, dims)).to(x.dtype)


@_decomposition("var_mean.correction")
def var_mean(
    x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Two passes: the mean, then the squares of what is left."""
    dims, wide = _dims(x, dim), _wide(x)
    average = mean(wide, dims, keepdim=True)
    count = _count(x, dims) - (1 if correction is None else correction)
    rest = wide - average
    squares = (rest * rest).sum(dims, keepdim)
    average = average if keepdim else average.squeeze(dims)
    return (squares / count).to(x.dtype), average.to(x.dtype)


@_decomposition("var.correction")
def var(x: Tensor, dim: Any = None, **kwargs: Any) -> Tensor:
    """The first half of var_mean."""
    return var_mean(x, dim, **kwargs)[0]


@_decomposition("std.correction")
def std(x: Tensor, dim: Any = None, **kwargs: Any) -> Tensor:
    """The root of var."""
    return var(_wide(x), dim, **kwargs).sqrt().to(x.dtype)
