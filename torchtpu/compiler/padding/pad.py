"""The pass that makes a graph with varying sizes run at fixed ones: `pad`, and what it returns."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.fx.node import map_arg

from torchtpu.compiler.buckets import sizes_in
from torchtpu.compiler.padding.builder import Builder, Equal, Value
from torchtpu.compiler.padding.decompose import decompose
from torchtpu.compiler.padding.layout import (
    Bucket,
    CannotPad,
    Expr,
    Layout,
    Symbol,
    Unpaddable,
    equation,
    expression_of,
    extent,
    is_size,
    same,
    sizes,
)
from torchtpu.compiler.padding.pointwise import pointwise
from torchtpu.compiler.padding.result import Constant, PaddedGraph, PaddedTensor, Size
from torchtpu.compiler.padding.table import (
    Call,
    find_rule,
    op_name,
    outputs,
    static_value,
    true_shape,
)
from torchtpu.private import torch as private
from torchtpu.private.torch import pytree

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_CHECKS = {
    "_assert_scalar.default", "_assert_async.msg", "_assert_tensor_metadata.default",
    "sym_constrain_range.default", "sym_constrain_range_for_size.default",
}  # fmt: skip


def pad(
    graph_module: GraphModule,
    bucket: Mapping[Any, int],
    *,
    layouts: Mapping[int, Layout] | None = None,
    keep: Collection[int] = (),
) -> PaddedGraph:
    """Return the graph at the sizes of `bucket` (by symbol or its name).

    Every placeholder and node must carry `meta["val"]`. Inputs come with their valid elements
    first in each dimension, except those that `layouts` describes (by position: an output of
    another padded graph, handed on as it is). Outputs are brought into that order too, except the
    positions in `keep`. Raises CannotPad where an op has no exact form at bucket size.
    """
    return _Pass(graph_module, bucket, dict(layouts or {}), keep).run()


class _Pass:
    """One run over a graph and, recursively, over the decompositions of its ops."""

    def __init__(
        self,
        graph_module: GraphModule,
        bucket: Mapping[Any, int],
        layouts: dict[int, Layout],
        keep: Collection[int],
    ) -> None:
        self.source = graph_module
        self.placeholders = list(graph_module.graph.find_nodes(op="placeholder"))
        self.origins = origins(graph_module)
        by_name = {str(key): n for key, n in bucket.items()}
        symbols = {s: by_name[str(s)] for s in _symbols(self.placeholders) if str(s) in by_name}
        self.bucket = Bucket(symbols)
        self.shapes = _shape_env(self.placeholders)
        self.builder = Builder(self.bucket, _device(self.placeholders), _equality(self.shapes))
        self.layouts, self.keep = layouts, keep
        self.constants: dict[str, torch.Tensor] = {}

    def run(self) -> PaddedGraph:
        with _guards_kept(self.shapes):
            values, inputs = self._inputs()
            outputs, returned = self._outputs(self._graph(self.source, values))
        self.builder.graph.output(tuple(returned))
        self.builder.graph.eliminate_dead_code()
        module = GraphModule(self.constants, self.builder.graph)
        return PaddedGraph(
            module=module,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            symbols=tuple(self.bucket.sizes),
            bucket=self.bucket,
            conditions=tuple(_assumed.get(self.shapes, ())),
            origins={s: o for s, o in self.origins.items() if s in self.bucket.sizes},
        )

    def _inputs(self) -> tuple[list[Any], list[PaddedTensor]]:
        values: list[Any] = []
        inputs: list[PaddedTensor] = []
        b = self.builder
        for position, node in enumerate(self.placeholders):
            b.origin, true = node, node.meta.get("val")
            if not isinstance(true, torch.Tensor):
                values.append(expression_of(true) if isinstance(true, _SYMBOLIC) else true)
                continue
            try:
                layout = self.layouts.get(position) or self.bucket.layout(true_shape(true))
            except Unpaddable as reason:
                raise _refusal(node, reason) from None
            fake = b.fake(true, sizes(layout))
            values.append(Value(b.placeholder(node.name, fake), layout))
            inputs.append(PaddedTensor(position=position, layout=layout))
        for symbol in self.bucket.sizes:
            with b.mode:
                fake = torch.empty((), dtype=torch.int64, device=b.device)
            b.truth.define(symbol, b.placeholder(f"size_{symbol}", fake))
        return values, inputs

    def _outputs(self, results: Any) -> tuple[list[Any], list[Node]]:
        outputs: list[PaddedTensor | Size | Constant] = []
        returned: list[Node] = []
        leaves = results if isinstance(results, (list, tuple)) else [results]
        for position, result in enumerate(leaves):
            if isinstance(result, Value):
                value = result if position in self.keep else self._led(result)
                returned.append(value.node)
                outputs.append(PaddedTensor(position=position, layout=value.dims))
            elif is_size(result):
                outputs.append(Size(expression=result))
            else:
                outputs.append(Constant(value=result))
        return outputs, returned

    def _led(self, value: Value) -> Value:
        try:
            return self.builder.lead(value)
        except Unpaddable as reason:
            raise _refusal(value.node, reason) from None

    def _graph(self, module: GraphModule, values: Sequence[Any]) -> Any:
        """Write a graph's nodes for the given inputs; return its outputs."""
        given, env = iter(values), dict[Node, Any]()
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "get_attr":
                env[node] = self._constant(module, node)
            elif node.op == "output":
                return map_arg(node.args[0], env.__getitem__)
            else:
                env[node] = self._node(node, env)
        return None

    def _constant(self, module: GraphModule, node: Node) -> Any:
        tensor = operator.attrgetter(str(node.target))(module)
        if not isinstance(tensor, torch.Tensor):
            raise _refusal(node, Unpaddable("a subgraph"))
        name = f"constant_{len(self.constants)}"
        self.constants[name] = tensor
        new = self.builder.graph.get_attr(name)
        with self.builder.mode:
            new.meta["val"] = self.builder.mode.from_tensor(tensor.detach())
        return static_value(new)

    def _node(self, node: Node, env: Mapping[Node, Any]) -> Any:
        true = node.meta.get("val")
        if isinstance(true, _SYMBOLIC):
            return expression_of(true)
        if isinstance(true, (int, float, bool)) or op_name(node.target) in _CHECKS:
            return true
        if node.graph is self.source.graph:
            self.builder.origin = node
        try:
            return self._call(node, env)
        except Unpaddable as reason:
            if node.graph is self.source.graph:
                raise _refusal(node, reason) from None
            raise Unpaddable(f"in its decomposition, {op_name(node.target)}: {reason}") from None

    def _call(self, node: Node, env: Mapping[Node, Any]) -> Any:
        args: Any = map_arg(node.args, env.__getitem__)
        kwargs: Any = map_arg(node.kwargs, env.__getitem__)
        if node.target is operator.getitem:
            return operator.getitem(*args)
        true = node.meta.get("val")
        if _is_static((args, kwargs), true):
            return _unchanged(self.builder, node, args, kwargs)
        if not isinstance(node.target, private.OpOverload):
            raise Unpaddable("not an aten op")
        if node.target._schema.is_mutable and node.target is not torch.ops.aten.copy_.default:
            raise Unpaddable("writes one of its inputs")
        call = Call(node=node, args=_bound(node.target, args, kwargs), true=true)
        result = _by_rule(self.builder, call)
        if result is NotImplemented:
            result = self._decomposed(node, env)
        return _checked(self.builder, result, true)

    def _decomposed(self, node: Node, env: Mapping[Node, Any]) -> Any:
        found = decompose(node)
        if found is None:
            raise Unpaddable("no padding rule and no decomposition")
        graph, inputs = found
        return self._graph(graph, [env[n] for n in inputs])


def _by_rule(b: Builder, call: Call) -> Any:
    rule = find_rule(call.target)
    if rule is None:
        if torch.Tag.pointwise not in call.target.tags:
            return NotImplemented
        rule = pointwise
    try:
        return rule(b, call)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # torch's, on its shapes
        raise Unpaddable(f"at bucket size: {error}") from error


def _bound(target: private.OpOverload, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Return the arguments by name, defaults included."""
    arguments = target._schema.arguments
    bound = {a.name: a.default_value for a in arguments}
    bound.update(zip((a.name for a in arguments), args, strict=False))
    return {**bound, **kwargs}


def _is_static(args: Any, true: Any) -> bool:
    leaves = _leaves(args)
    if any(is_size(leaf) for leaf in leaves):
        return False
    tensors = [t for t in pytree.tree_leaves(true) if isinstance(t, torch.Tensor)]
    symbolic = any(isinstance(n, torch.SymInt) for t in tensors for n in t.shape)
    return not symbolic and not any(v.padded for v in leaves if isinstance(v, Value))


def _leaves(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree, is_leaf=lambda x: isinstance(x, Value) or is_size(x))


def _unchanged(b: Builder, node: Node, args: Any, kwargs: Any) -> Any:
    new = b.emit(node.target, *args, **kwargs)
    if isinstance(new.meta["val"], (tuple, list)):
        return [static_value(n) for n in outputs(b, new)]
    return static_value(new)


def _checked(b: Builder, result: Any, true: Any) -> Any:
    """Compare a rule's result with what torch says of the op: sizes, padded sizes, dtype."""
    if isinstance(true, (tuple, list)):
        return [_checked(b, r, t) for r, t in zip(result, true, strict=True)]
    if not isinstance(true, torch.Tensor) or result is None:
        return result
    expected = true_shape(true)
    agree = len(expected) == len(result.dims) and list(result.fake.shape) == sizes(result.dims)
    if not agree or not all(map(b.equal, map(extent, result.dims), expected)):
        raise Unpaddable(
            f"expected a result of size {expected}, got {[extent(d) for d in result.dims]} in "
            f"{list(result.fake.shape)}"
        )
    if result.dtype != true.dtype:
        return b.value(result.dims, torch.ops.aten._to_copy.default, result, dtype=true.dtype)
    return result


def _refusal(node: Node, reason: Unpaddable) -> CannotPad:
    line = (node.meta.get("stack_trace") or "").strip()
    where = f" at\n{line}\n" if line else ""
    return CannotPad(
        f"[{op_name(node.target)}] not exact at bucket size{where}: {reason}; compile this graph "
        "for each size, or mark the dimension static"
    )


def _symbols(placeholders: Sequence[Node]) -> list[Symbol]:
    """Return every symbol in the sizes of the inputs."""
    sizes = [size for n in placeholders for size in sizes_in(n.meta.get("val"))]
    found = [s for n in sizes for s in sorted(n.node.expr.free_symbols, key=str)]
    return list(dict.fromkeys(found))


def origins(graph_module: GraphModule) -> dict[Symbol, tuple[int, int | None]]:
    """Return where in the arguments each symbol can be read: a size, or a tensor's dim."""
    found: dict[Symbol, tuple[int, int | None]] = {}
    for position, node in enumerate(graph_module.graph.find_nodes(op="placeholder")):
        true = node.meta.get("val")
        if isinstance(true, torch.SymInt) and true.node.expr.is_Symbol:
            found[true.node.expr] = (position, None)
        elif isinstance(true, torch.Tensor):
            for dim, n in enumerate(true_shape(true)):
                if n.is_Symbol:
                    found.setdefault(n, (position, dim))
    return found


def _shape_env(placeholders: Sequence[Node]) -> ShapeEnv:
    sizes = (size for n in placeholders for size in sizes_in(n.meta.get("val")))
    return next((size.node.shape_env for size in sizes), None) or ShapeEnv()


def _equality(shapes: ShapeEnv) -> Equal:
    """Return a test of sizes for being equal, by what torch's guards say of them."""

    def equal(a: Expr, b: Expr) -> bool:
        return same(a, b) or statically_known_true(shapes.create_symboolnode(equation(a, b)))

    return equal


# What passes over graphs of these sizes took for granted: torch notes a guard the first time only.
_assumed: WeakKeyDictionary[ShapeEnv, list[Expr]] = WeakKeyDictionary()


@contextmanager
def _guards_kept(shapes: ShapeEnv) -> Iterator[None]:
    """Keep the guards that tracing a decomposition adds: conditions of the padded graph."""
    before = len(shapes.guards)
    try:
        yield
    finally:
        _assumed.setdefault(shapes, []).extend(g.expr for g in shapes.guards[before:])


def _device(placeholders: Sequence[Node]) -> torch.device:
    tensors = (n.meta.get("val") for n in placeholders)
    devices = [t.device for t in tensors if isinstance(t, torch.Tensor)]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
