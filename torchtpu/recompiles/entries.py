"""The entries of a program's key by name: what `self.shape` or `op 3 aten::mul: other.dtype` is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torchtpu.program import Node, Program, Ref

_NO_OP = frozenset({"view"})  # nodes that read or write an argument, and the order of a result


class Entry(NamedTuple):
    """One entry: an argument (or "", for the whole program) and which of its properties."""

    argument: str
    kind: str

    def __str__(self) -> str:
        if not self.argument or self.argument.endswith(" "):
            return self.argument + self.kind
        return f"{self.argument}.{self.kind}"


def ops(program: Program) -> tuple[str, ...]:
    """Return the names of the ops in order, without reads and writes of views."""
    found = tuple(n.op for n in program.nodes if n.op not in _NO_OP)
    return found or tuple(n.op for n in program.nodes)


def entries(program: Program, precision: str) -> dict[Entry, Any]:
    """Return what the program's key consists of; the likeliest causes of a recompile first."""
    names = ops(program)
    numbered = _numbered(program)
    found: dict[Entry, Any] = {}
    derived: dict[Entry, Any] = {}  # follows from other entries, or says less than they do
    number = 0
    for node in program.nodes:
        if node.op in _NO_OP and names[0] not in _NO_OP:
            if not _is_read(node):
                layout = ", ".join(str(a) for a in node.args if type(a) is not Ref)
                derived[Entry(f"write {len(derived)}", "layout")] = layout
            continue
        before = f"op {number} {node.op}: " if len(names) > 1 else ""
        for name, value in _arguments(node):
            if name == "result":
                derived[Entry(before, "result")] = _results(value)
            else:
                found |= _of_argument(before + name, value, numbered)
        number += 1
    found |= derived
    found[Entry("", "outputs")] = program.outputs
    found[Entry("", "donation")] = program.donated
    if program.shardings is not None:
        found[Entry("", "shardings")] = program.shardings
    found[Entry("", "matmul precision")] = precision
    return found


def _arguments(node: Node) -> Iterator[tuple[str, Any]]:
    yield from node.kwargs
    for position, value in enumerate(node.args):
        outputs = getattr(value, "outputs", None)  # CallTypes
        yield ("result", outputs) if outputs is not None else (f"argument {position}", value)


def _results(types: Any) -> str:
    return ", ".join("none" if t is None else f"{t.dtype}{list(t.shape)}" for t in types)


def _is_read(node: Node) -> bool:
    return len(node.args) == 2 and hasattr(node.args[1], "strides")


def _numbered(program: Program) -> list[dict[str, Any]]:
    """The properties of each value that an argument can be."""
    values = [{"dtype": str(t.dtype), "shape": t.shape} for t in program.inputs]
    for number, node in enumerate(program.nodes):
        if _is_read(node) and type(node.args[0]) is Ref:
            values.append(_of_view(node.args[1], values[node.args[0].index]))
        else:
            values += [{"source": f"op {number}"} for _ in range(node.outputs)]
    return values


def _of_view(view: Any, base: dict[str, Any]) -> dict[str, Any]:
    found = {
        "dtype": str(view.dtype),
        "shape": view.shape,
        "strides": view.strides,
        "offset": view.offset,
    }
    return found | ({"storage": base["shape"]} if "shape" in base else {})


def _of_argument(name: str, value: Any, values: list[dict[str, Any]]) -> dict[Entry, Any]:
    if type(value) is Ref:
        return {Entry(name, kind): v for kind, v in values[value.index].items()}
    if type(value) is tuple and any(type(v) is Ref for v in value):
        found: dict[Entry, Any] = {Entry(name, "length"): len(value)}
        for position, item in enumerate(value):
            found |= _of_argument(f"{name}[{position}]", item, values)
        return found
    if hasattr(value, "strides") and hasattr(value, "offset"):
        return {Entry(name, kind): v for kind, v in _of_view(value, {}).items()}
    return {Entry(name, "value"): value}
