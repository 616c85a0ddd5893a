"""Programs: short lists of lowerings over numbered values; what every mode hands to the executor.

Values are numbered in order: the program's inputs first, then the outputs of each node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ArrayType:
    """Shape and dtype of a value."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """The value with this number, as an argument of a node."""

    index: int


@dataclass(frozen=True, slots=True)
class Node:
    """One call: `fn(*args, **kwargs)` with Refs replaced by values; returns `outputs` arrays.

    `fn` must be a module-level function or another hashable constant: it is part of the key.
    """

    op: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: int


@dataclass(frozen=True, slots=True)
class Program:
    """Nodes from inputs to outputs; `donated` are inputs whose memory the outputs may take over.

    ranks: the processes that run it together, this one among them; none: this one alone.
    shardings: how the inputs lie on the mesh of a process with many devices (targets.Spec).
    """

    inputs: tuple[ArrayType, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    donated: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    shardings: tuple[Any, ...] | None = None
    label: str = field(default="", compare=False)  # a name of its own: a compiled graph's

    @property
    def name(self) -> str:
        """The label, else the ops in order, for logs and HLO module names."""
        if self.label:
            return self.label
        names = [
            n.op.removeprefix("aten::").replace(".", "_") for n in self.nodes if n.op != "view"
        ]
        return "+".join(names[:4]) + ("+..." if len(names) > 4 else "") or "view"

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run the nodes on arrays or tracers; the function that is lowered to StableHLO."""
        from jax import named_scope

        values = list(inputs)
        for node in self.nodes:
            args = substituted(node.args, values.__getitem__)
            kwargs = dict(substituted(node.kwargs, values.__getitem__))
            with named_scope(node.op):
                result = node.fn(*args, **kwargs)
            values.extend([result] if node.outputs == 1 else result)
        return [values[i] for i in self.outputs]


def substituted(argument: Any, value: Callable[[int], Any]) -> Any:
    """Return an argument with every Ref replaced by `value(its number)`."""
    if type(argument) is Ref:
        return value(argument.index)
    if type(argument) is tuple:
        return tuple(substituted(a, value) for a in argument)
    return argument


def renumbered(node: Node, numbers: Mapping[int, int] | Sequence[int]) -> Node:
    """Return the node on values of other numbers."""
    args, kwargs = substituted((node.args, node.kwargs), lambda i: Ref(numbers[i]))
    return Node(node.op, node.fn, args, kwargs, node.outputs)
