"""Writes the padded graph: nodes and their shapes, true sizes, masks, moves between layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from torchtpu.compiler.padding.layout import (
    ONE,
    Bucket,
    Dim,
    Expr,
    Layout,
    Unpaddable,
    canonical,
    expression_of,
    extent,
    groups,
    leading,
    padded,
    regroup,
    same,
    size,
    sizes,
    static_dim,
)
from torchtpu.compiler.padding.sizes import SizeWriter
from torchtpu.private.torch import FakeTensorMode, pytree

aten = torch.ops.aten
Equal = Callable[[Expr, Expr], bool]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the padded graph and how its valid elements lie."""

    node: Node
    dims: Layout

    @property
    def fake(self) -> torch.Tensor:
        fake: torch.Tensor = self.node.meta["val"]
        return fake

    @property
    def dtype(self) -> torch.dtype:
        return self.fake.dtype

    @property
    def padded(self) -> bool:
        return any(map(padded, self.dims))


class Builder:
    """The graph being written; `origin` is the node of the unpadded graph it is written for."""

    def __init__(self, bucket: Bucket, device: torch.device, equal: Equal = same) -> None:
        self.graph = Graph()
        self.bucket = bucket
        self.equal = equal
        self.device = device
        self.mode = FakeTensorMode()
        self.origin: Node | None = None
        self.truth = SizeWriter(self.emit)
        self._cache: dict[Any, Node] = {}

    def fake(self, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a contiguous abstract tensor of the graph's mode."""
        with self.mode:
            return torch.empty(shape, dtype=like.dtype, device=like.device)

    def placeholder(self, name: str, fake: torch.Tensor) -> Node:
        """Add an input of the graph."""
        node = self.graph.placeholder(name)
        node.meta["val"] = fake
        return node

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a call on nodes, values and constants; torch works out its result's shape."""
        args, kwargs = pytree.tree_map(_to_node, (args, kwargs))
        fakes, fake_kwargs = pytree.tree_map(_to_fake, (args, kwargs))
        with self.mode, torch.no_grad():
            fake = target(*fakes, **fake_kwargs)
        node = self.graph.call_function(target, args, kwargs)
        if self.origin is not None:
            node.meta.update({k: v for k, v in self.origin.meta.items() if k in _KEPT_META})
        node.meta["val"] = fake
        return node

    def value(self, dims: Iterable[Dim], target: Any, *args: Any, **kwargs: Any) -> Value:
        """Add a call whose result lies as `dims`."""
        return Value(self.emit(target, *args, **kwargs), tuple(dims))

    def cached(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a call of hashable arguments once per graph."""
        key = (target, repr(args), repr(kwargs))
        if key not in self._cache:
            self._cache[key] = self.emit(target, *args, **kwargs)
        return self._cache[key]

    # True sizes and positions.

    def number(self, expression: Expr) -> Node:
        """Return the true value of an expression of sizes as a 0-dim tensor."""
        return self.truth.write(expression_of(expression))

    def positions(self, n: int) -> Node:
        """Return 0 .. n-1."""
        return self.cached(aten.arange.default, n, dtype=torch.int64, device=self.device)

    def valid(self, dim: Dim) -> Node:
        """Return a boolean vector of the dimension's padded size: which indices are valid."""
        key = ("valid", dim)
        if key not in self._cache:
            self._cache[key] = self._valid(dim)
        return self._cache[key]

    def _valid(self, dim: Dim) -> Node:
        digits = [(a, d) for a, d in zip(dim, self._digits(dim), strict=True) if a.padded]
        masks = [self.emit(aten.lt.Tensor, d, self.number(a.extent)) for a, d in digits]
        mask = masks[0]
        for other in masks[1:]:
            mask = self.emit(aten.logical_and.default, mask, other)
        return mask

    def _digits(self, dim: Dim) -> list[Node]:
        """Return, for each atom, its index at every position."""
        step, digits = size(dim), []
        for i, atom in enumerate(dim):
            step //= atom.size
            digit = self.positions(size(dim))
            if step != 1:
                digit = self.emit(aten.floor_divide.default, digit, step)
            digits.append(self.emit(aten.remainder.Scalar, digit, atom.size) if i else digit)
        return digits

    def mask(self, layout: Layout, dims: Iterable[int] | None = None) -> Node | None:
        """Return which elements are valid along `dims` (all), broadcastable; None: every one is."""
        mask, rank = None, len(layout)
        for d in range(rank) if dims is None else dims:
            if padded(layout[d]):
                shape = [size(layout[d]) if i == d else 1 for i in range(rank)]
                one = self.cached(aten.view.default, self.valid(layout[d]), shape)
                mask = one if mask is None else self.cached(aten.logical_and.default, mask, one)
        return mask

    def constant(self, number: float, dtype: torch.dtype) -> Node:
        """Return a 0-dim constant."""
        return self.cached(aten.full.default, [], number, dtype=dtype, device=self.device)

    def fill(self, x: Value, number: float, dims: Iterable[int] | None = None) -> Value:
        """Write a number over the padding along `dims` (all)."""
        mask = self.mask(x.dims, dims)
        if mask is None:
            return x
        return self.value(x.dims, aten.where.self, mask, x, self.constant(number, x.dtype))

    # Moves between layouts.

    def reshape(self, x: Value | Node, shape: Sequence[int]) -> Node:
        """Return the padded tensor in another padded shape."""
        node: Node = _to_node(x)
        if list(node.meta["val"].shape) == list(shape):
            return node
        try:
            return self.emit(aten.view.default, node, list(shape))
        except (RuntimeError, ValueError):
            dense = self.emit(aten.clone.default, node, memory_format=torch.contiguous_format)
            return self.emit(aten.view.default, dense, list(shape))

    def view(self, x: Value, shape: Sequence[Expr]) -> Value:
        """Return the valid elements, in order, as a tensor of the true `shape`."""
        if any(n == 0 for n in shape):
            raise Unpaddable("reshape of a tensor without elements")
        runs = groups([extent(dim) for dim in x.dims], shape) if x.dims and shape else []
        dims: list[Dim] = []
        for before, after in runs:
            atoms = [atom for d in before for atom in x.dims[d]]
            wanted = [shape[d] for d in after]
            found = regroup(atoms, wanted)
            if found is None:
                at = len(dims)
                rest = x.dims[before.stop :]
                flat = canonical(atoms)
                node = self.reshape(x, sizes([*dims, flat, *rest]))
                found = self.bucket.layout(wanted)
                node = self._take(node, at, self._source(flat, found), sizes(found))
                x = Value(node, (*x.dims[: before.start], *[()] * len(before), *rest))
            dims += found
        if not runs:
            dims = [static_dim(1)] * len(shape)
        return Value(self.reshape(x, sizes(dims)), tuple(dims))

    def relayout(self, x: Value, d: int, dim: Dim) -> Value:
        """Return the tensor with dimension `d` lying as `dim`."""
        if x.dims[d] == dim:
            return x
        if not self.equal(extent(x.dims[d]), extent(dim)):
            raise Unpaddable(f"sizes {extent(x.dims[d])} and {extent(dim)} are not known equal")
        index = self._source(x.dims[d], (dim,))
        dims = (*x.dims[:d], dim, *x.dims[d + 1 :])
        return Value(self._take(x.node, d, index, [size(dim)]), dims)

    def lead(self, x: Value, dims: Iterable[int] | None = None) -> Value:
        """Return the tensor with valid elements first along `dims` (all)."""
        for d in range(len(x.dims)) if dims is None else dims:
            if not leading(x.dims[d]):
                x = self.relayout(x, d, self.bucket.dim(extent(x.dims[d])))
        return x

    def pick(self, x: Value, d: int, index: Node, dim: Dim) -> Value:
        """Return the elements at `index`, a vector of positions; outside ones are clamped."""
        index = self.emit(aten.clamp.default, index, 0, size(x.dims[d]) - 1)
        node = self.emit(aten.index_select.default, x, d, index)
        return Value(node, (*x.dims[:d], dim, *x.dims[d + 1 :]))

    def _take(self, node: Node, d: int, index: Node, shape: Sequence[int]) -> Node:
        """Pick along `d` and give the result `shape` there; the index is a vector."""
        node = self.emit(aten.index_select.default, node, d, index)
        whole = list(node.meta["val"].shape)
        return self.reshape(node, [*whole[:d], *shape, *whole[d + 1 :]])

    def _source(self, dim: Dim, layout: Layout) -> Node:
        """Return where in `dim` each valid element of `layout` (flattened) lies."""
        key = ("source", dim, layout)
        if key not in self._cache:
            self._cache[key] = self._find(dim, layout)
        return self._cache[key]

    def _find(self, dim: Dim, layout: Layout) -> Node:
        target = tuple(atom for each in layout for atom in each)
        true = self.true_index(target)
        position, step, inner = None, 1, ONE
        for i, atom in reversed(list(enumerate(dim))):
            digit = self._div(true, inner)
            if i:
                digit = self.emit(aten.remainder.Tensor, digit, self.number(atom.extent))
            if step != 1:
                digit = self.emit(aten.mul.Tensor, digit, step)
            position = digit if position is None else self.emit(aten.add.Tensor, position, digit)
            step, inner = step * atom.size, inner * atom.extent
        if position is None:
            position = self.emit(aten.zeros_like.default, true)
        return self.emit(aten.clamp.default, position, 0, size(dim) - 1)

    def true_index(self, dim: Dim) -> Node:
        """Return the true index of every valid position of a dimension; anything for padding."""
        total, inner = None, ONE
        for atom, digit in reversed(list(zip(dim, self._digits(dim), strict=True))):
            if inner != 1:
                digit = self.emit(aten.mul.Tensor, digit, self.number(inner))
            total = digit if total is None else self.emit(aten.add.Tensor, total, digit)
            inner = inner * atom.extent
        return self.positions(1) if total is None else total

    def _div(self, x: Node, by: Expr) -> Node:
        return x if by == 1 else self.emit(aten.floor_divide.default, x, self.number(by))

    def join(self, values: Sequence[Value]) -> tuple[list[Value], Layout]:
        """Broadcast layouts: return the values with dims that agree, and the result's layout."""
        rank = max((len(v.dims) for v in values), default=0)
        joined: list[Dim] = []
        moved = list(values)
        for d in range(-rank, 0):
            having = [v for v in moved if len(v.dims) >= -d and v.dims[d] != ()]
            dim = max(having, key=lambda v: math.prod(v.fake.shape)).dims[d] if having else ()
            moved = [
                self.relayout(v, len(v.dims) + d, dim)
                if len(v.dims) >= -d and v.dims[d] != ()
                else v
                for v in moved
            ]
            joined.append(dim)
        return moved, tuple(joined)


_KEPT_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "seq_nr", "original_aten")


def _to_node(x: Any) -> Any:
    return x.node if isinstance(x, Value) else x


def _to_fake(x: Any) -> Any:
    return x.meta["val"] if isinstance(x, Node) else x
