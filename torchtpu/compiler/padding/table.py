"""The table of rules: how each op runs at bucket size, and the call that a rule gets."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchtpu.compiler.padding.builder import Builder, Value
from torchtpu.compiler.padding.layout import (
    Dim,
    Expr,
    Unpaddable,
    expression_of,
    is_size,
    static_dim,
)
from torchtpu.errors import LoweringError
from torchtpu.private.torch import pytree

Rule = Callable[["Builder", "Call"], Any]
RULES: dict[str, Rule] = {}


@dataclass(frozen=True, kw_only=True)
class Call:
    """An op of the unpadded graph: `args` by name in values and expressions, `true` its result."""

    node: Node
    args: dict[str, Any]
    true: Any

    @property
    def target(self) -> Any:
        return self.node.target

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument that only some overloads have."""
        return self.args.get(name, default)

    @property
    def shape(self) -> list[Expr]:
        """The true shape of the result."""
        return true_shape(self.true)

    @property
    def shapes(self) -> list[list[Expr]]:
        """The true shapes of several results."""
        return [true_shape(each) for each in self.true]

    @property
    def values(self) -> list[Value]:
        """Every tensor among the arguments, lists included."""
        return [v for v in _leaves(list(self.args.values())) if isinstance(v, Value)]

    def dim(self, name: str, rank: int) -> int:
        """Return an argument that is a dimension, counted from the front."""
        return int(self.args[name]) % max(rank, 1)

    def dims(self, rank: int, name: str = "dim") -> list[int]:
        """Return the dimensions that an op reduces: all without `dim`, or where it is empty."""
        given = self.args.get(name)
        if given is None or given == []:
            return list(range(rank))
        return [d % max(rank, 1) for d in ([given] if isinstance(given, int) else given)]


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops: `sum.dim_IntList` for one overload, `sum` for the others too."""

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise LoweringError(f"[{name}] expected one padding rule, got a second")
            RULES[name] = function
        return function

    return register


def find_rule(target: Any) -> Rule | None:
    """Return the rule of an overload, or of its op."""
    name = op_name(target)
    return RULES.get(name) or RULES.get(name.rpartition(".")[0])


def op_name(target: Any) -> str:
    """Return `sum.dim_IntList`; ops outside aten with their namespace: `prims::iota.default`."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return str(getattr(target, "__name__", target))
    return f"{schema.name.removeprefix('aten::')}.{schema.overload_name or 'default'}"


def redo(b: Builder, call: Call, dims: Iterable[Dim], **changes: Any) -> Value:
    """Write the same op with some arguments changed; its result lies as `dims`."""
    return Value(redo_node(b, call, **changes), tuple(dims))


def redo_node(b: Builder, call: Call, target: Any = None, **changes: Any) -> Node:
    """Write the same op, or another overload of it, with some arguments changed."""
    target = target or call.target
    args = {**call.args, **changes}
    left = [e for e in _leaves(list(args.values())) if is_size(e)]
    if left:
        raise Unpaddable(f"the argument {left[0]} is a size that varies")
    given = [(a, args.get(a.name)) for a in target._schema.arguments]
    named = {a.name: v for a, v in given if a.kwarg_only and not _is_default(a, v)}
    positional = [(a, v) for a, v in given if not a.kwarg_only]
    while positional and _is_default(*positional[-1]):
        positional.pop()
    return b.emit(target, *[v for _, v in positional], **named)


def outputs(b: Builder, node: Node) -> list[Node]:
    """Return the results of an op that has several."""
    return [b.emit(operator.getitem, node, i) for i in range(len(node.meta["val"]))]


def static_value(node: Node) -> Any:
    """Return a tensor without padding; a number or None as it is."""
    fake = node.meta["val"]
    return Value(node, tuple(map(static_dim, fake.shape))) if is_tensor(fake) else fake


def is_tensor(x: object) -> bool:
    """Tell whether an example value is a tensor."""
    return isinstance(x, torch.Tensor)


def true_shape(true: Any) -> list[Expr]:
    """Return the sizes of an example tensor of the unpadded graph as expressions."""
    return [true_size(n) for n in true.shape]


def true_size(n: Any) -> Expr:
    """Return an example size as an expression."""
    return expression_of(n)


def _leaves(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree, is_leaf=lambda x: isinstance(x, Value) or is_size(x))


def _is_default(argument: Any, value: Any) -> bool:
    if isinstance(value, (Value, Node)) or not argument.has_default_value():
        return False
    default = argument.default_value
    return type(value) is type(default) and bool(value == default)
