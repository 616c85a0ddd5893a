"""The ops of a graph that only touch CPU tensors, run on the host before the rest is one program.

Optimizers keep their step counts there: AdamW's bias corrections are scalars of the CPU, computed
from counts that the graph also writes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchtpu.private.torch import pytree

Compile = Callable[[GraphModule], Callable[[list[Any]], Any]]


def compiled(module: GraphModule, compile_: Compile) -> Callable[[list[Any]], Any]:
    """Compile a graph, or what is left of it behind its host part."""
    host = _host_nodes(module.graph)
    return HostFirst(module, host, compile_) if host else compile_(module)


class HostFirst:
    """Runs an FX graph in two parts; takes and returns flat lists."""

    def __init__(self, module: GraphModule, host: set[Node], compile_: Compile) -> None:
        self._boxed_call = True
        nodes = list(module.graph.nodes)
        results = pytree.tree_leaves(nodes[-1].args)
        inputs = [n for n in nodes if n.op == "placeholder"]
        kept = [n for n in nodes if n in host and not host.issuperset(n.users)]
        self._host = _Part(module, [n for n in nodes if n in host], kept, inputs)
        rest = [n for n in nodes if n not in host and n.op not in ("placeholder", "output")]
        returned = {n for n in results if isinstance(n, Node)}
        made = [n for n in rest if n in returned]
        self._device = _Part(module, rest, made, [*inputs, *kept])
        self._run = compile_(self._device.module)
        places = {n: i for i, n in enumerate([*inputs, *kept, *made])}
        self._results = [(places.get(n), n) for n in results]

    def __call__(self, inputs: list[Any]) -> Any:
        """Run on a flat list of tensors and Python numbers; the list is emptied."""
        values = [*inputs, *self._host.module(*self._host.choose(inputs))]
        inputs.clear()
        values += self._run(self._device.choose(values))
        return [value if i is None else values[i] for i, value in self._results]


class _Part:
    """Some nodes of a graph as a module of their own, and which values it takes."""

    def __init__(
        self, module: GraphModule, nodes: Sequence[Node], made: Sequence[Node], given: list[Node]
    ) -> None:
        read = {n for node in nodes for n in node.all_input_nodes}
        self._takes = [i for i, node in enumerate(given) if node in read]
        graph, copies = Graph(), dict[Node, Node]()
        for node in (given[i] for i in self._takes):
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = node.meta
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output([copies[n] for n in made])
        self.module = GraphModule(module, graph)

    def choose(self, values: Sequence[Any]) -> list[Any]:
        return [values[i] for i in self._takes]


def _host_nodes(graph: Graph) -> set[Node]:
    """Nodes that depend on CPU tensors alone; none where the rest cannot come after them."""
    host: set[Node] = set()
    written: set[Node] = set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if not _is_on_host(node) or not all(
            n in host or _is_given(n) for n in node.all_input_nodes
        ):
            continue
        host.add(node)
        if _is_mutable(node):
            written.add(node.all_input_nodes[0])
    rest = [n for n in graph.nodes if n not in host and n.op == "call_function"]
    late = any(_is_on_host(n) or not written.isdisjoint(n.all_input_nodes) for n in rest)
    return host if rest and not late else set()


def _is_mutable(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _is_given(node: Node) -> bool:
    """Whether a node is an input of the graph that the host has."""
    return node.op == "placeholder" and (_is_on_host(node) or not _tensors(node))


def _is_on_host(node: Node) -> bool:
    tensors = _tensors(node)
    return bool(tensors) and all(t.device.type == "cpu" for t in tensors)


def _tensors(node: Node) -> list[torch.Tensor]:
    values = pytree.tree_leaves(node.meta.get("val"))
    return [v for v in values if isinstance(v, torch.Tensor)]
