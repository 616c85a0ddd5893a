"""The programs of a step as StableHLO, parsed once, and what each does independently of the rest.

A program over a list of tensors (an optimizer's step) falls apart into one piece per tensor.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any  # jaxlib's MLIR bindings are untyped
from weakref import WeakKeyDictionary

from torchtpu.perf_model import bytecode
from torchtpu.perf_model.program import Graph
from torchtpu.private import jax as private

_LEAST_OPS = 24  # of a program that is worth taking apart
_SMALL = 4096  # elements of an input whose parts are read again by every piece
_NAMES = re.compile(r'@(?:"([^"]*)"|([\w.$-]+))')  # of a function, as MLIR prints it


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """A part of a program: which of its inputs it takes, and which outputs it gives.

    signature: equal for pieces that compute the same on the same types.
    """

    signature: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ops: int
    module: Any = field(repr=False)
    body: tuple[Any, ...] | None = field(default=None, repr=False)  # None: all of it


class Programs:
    """Parses the kept StableHLO of graphs, each once, in one MLIR context."""

    def __init__(self) -> None:
        self.context = private.ir_context()
        self._read_ones: WeakKeyDictionary[Graph, _Apart | None] = WeakKeyDictionary()

    def whole(self, graph: Graph) -> Piece | None:
        """Return a graph's program as one piece; None where no StableHLO was kept."""
        read = self._program(graph)
        return read.whole if read else None

    def pieces(self, graph: Graph) -> tuple[Piece, ...]:
        """Return the independent pieces of a graph's program; () where no StableHLO was kept."""
        read = self._program(graph)
        return read.pieces if read else ()

    def _program(self, graph: Graph) -> _Apart | None:
        if graph not in self._read_ones:
            data = bytecode.kept(graph)
            self._read_ones[graph] = None if data is None else self._parse(data)
        return self._read_ones[graph]

    def _parse(self, data: bytes) -> _Apart:
        from jaxlib.mlir import ir

        with self.context:
            module = ir.Module.parse(data)
        main = main_of(module)
        for name in ("arg_attrs", "res_attrs"):
            if name in main.attributes:
                del main.attributes[name]
        return _Apart(module, main)


def main_of(module: Any) -> Any:
    """Return the function `main` of a module, or its only one."""
    functions = {f.attributes["sym_name"].value: f for f in functions_of(module)}
    return functions.get("main") or next(iter(functions.values()))


def functions_of(module: Any) -> list[Any]:
    """Return the functions of a module."""
    found = [op.operation for op in module.body.operations]
    return [op for op in found if op.name == "func.func"]


def called(op: Any) -> list[str]:
    """Return the names of the functions that an op, or one in its regions, refers to."""
    text = op.get_asm(enable_debug_info=False)
    return [quoted or plain for quoted, plain in _NAMES.findall(text)]


def captured(op: Any) -> Iterator[Any]:
    """Yield the values that an op and the regions in it use."""
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from captured(inner.operation)


class _Functions:
    """What the functions of a module compute, whatever they are called."""

    def __init__(self, module: Any) -> None:
        self._by_name = {f.attributes["sym_name"].value: f for f in functions_of(module)}
        self._digests: dict[str, str] = {}

    def resolved(self, text: str) -> str:
        """Return a text in which digests stand for the names of functions."""
        if "@" not in text:
            return text
        return _NAMES.sub(lambda found: self._digest(found[1] or found[2]), text)

    def _digest(self, name: str) -> str:
        if name not in self._by_name:
            return f"@{name}"
        if name not in self._digests:
            text = self._by_name[name].get_asm(enable_debug_info=False)
            text = self.resolved(_NAMES.sub("", text, count=1))  # less its own name
            self._digests[name] = hashlib.sha256(text.encode()).hexdigest()
        return self._digests[name]


class _Apart:
    """Finds the ops of a function that no tensor connects: numbers are computed again for each."""

    def __init__(self, module: Any, main: Any) -> None:
        self.module = module
        self._functions = _Functions(module)
        block = main.regions[0].blocks[0]
        *ops, self._return = [op.operation for op in block.operations]
        self.ops: list[Any] = ops
        self._arguments = {a: n for n, a in enumerate(block.arguments)}
        self._made = {r: n for n, op in enumerate(ops) for r in op.results}
        self._uses = [self._operands(op) for op in ops]
        self._shared = self._find_shared()
        self._parent = list(range(len(ops)))

    def _operands(self, op: Any) -> list[Any]:
        return [v for v in captured(op) if v in self._made or v in self._arguments]

    def _find_shared(self) -> list[bool]:
        """Whether an op makes only numbers, constants and their broadcasts from small inputs."""
        shared: list[bool] = []
        for op, uses in zip(self.ops, self._uses, strict=True):
            small = all(_elements(r) <= 1 for r in op.results) or op.name in (
                "stablehlo.constant",
                "stablehlo.broadcast_in_dim",
            )
            shared.append(small and not len(op.regions) and all(map(self._again(shared), uses)))
        return shared

    def _again(self, shared: Sequence[bool]) -> Any:
        def may_be_read_again(value: Any) -> bool:
            made = self._made.get(value)
            return shared[made] if made is not None else _elements(value) <= _SMALL

        return may_be_read_again

    def _find(self, op: int) -> int:
        while self._parent[op] != op:
            self._parent[op] = self._parent[self._parent[op]]
            op = self._parent[op]
        return op

    def groups(self) -> list[tuple[int, ...]]:
        """Return the outputs of each independent part, in the order of their first ones."""
        for number, uses in enumerate(self._uses):
            for value in uses:
                made = self._made.get(value)
                if made is not None and not self._shared[made] and not self._shared[number]:
                    self._parent[self._find(number)] = self._find(made)
        found: dict[int, list[int]] = {}
        for position, value in enumerate(self._return.operands):
            made = self._made.get(value, -1)
            rest = made < 0 or self._shared[made]
            found.setdefault(-1 if rest else self._find(made), []).append(position)
        return [tuple(outputs) for outputs in found.values()]

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The independent parts; the program as one piece where there is only one."""
        groups = self.groups() if len(self.ops) >= _LEAST_OPS else []
        return tuple(map(self.piece, groups)) if len(groups) > 1 else (self.whole,)

    @cached_property
    def whole(self) -> Piece:
        """The program as one piece."""
        text = self.module.operation.get_asm(enable_debug_info=False)
        return Piece(
            signature=hashlib.sha256(text.encode()).hexdigest(),
            inputs=tuple(range(len(self._arguments))),
            outputs=tuple(range(len(self._return.operands))),
            ops=len(self.ops),
            module=self.module,
        )

    def piece(self, outputs: tuple[int, ...]) -> Piece:
        """Return the part of the program that makes some of its outputs."""
        results = [self._return.operands[n] for n in outputs]
        wanted, todo = set(), [self._made[v] for v in results if v in self._made]
        while todo:
            number = todo.pop()
            if number not in wanted:
                wanted.add(number)
                todo += [self._made[v] for v in self._uses[number] if v in self._made]
        numbers = sorted(wanted)
        reads = [v for n in numbers for v in self._uses[n]] + results
        inputs = sorted({self._arguments[v] for v in reads if v in self._arguments})
        return Piece(
            signature=self._signature(numbers, inputs, results),
            inputs=tuple(inputs),
            outputs=outputs,
            ops=len(numbers),
            module=self.module,
            body=tuple(self.ops[n] for n in numbers),
        )

    def _signature(self, numbers: Sequence[int], inputs: Sequence[int], results: Any) -> str:
        """A digest of the ops with their values numbered in order, and of what they call."""
        positions = {position: n for n, position in enumerate(inputs)}
        names = {v: positions[n] for v, n in self._arguments.items() if n in positions}
        rows: list[str] = [str(value.type) for value in names]
        for number in numbers:
            op = self.ops[number]
            if self._shared[number] and op.name == "stablehlo.slice":  # whichever number it takes
                rows.append(f"slice {op.operands[0].type} {op.results[0].type}")
                names[op.results[0]] = len(names)
            else:
                rows += _described(op, names)
        rows.append(str([names[v] for v in results]))
        text = self._functions.resolved("\n".join(rows))
        return hashlib.sha256(text.encode()).hexdigest()


def _described(op: Any, names: dict[Any, int]) -> Iterator[str]:
    """Yield an op and those in its regions as text, values by their numbers."""
    keys = [a if isinstance(a, str) else a.name for a in op.attributes]  # jaxlib before 0.12: str
    attributes = [f"{key}={op.attributes[key]}" for key in keys]
    uses = [names[v] for v in op.operands]
    for result in op.results:
        names[result] = len(names)
    yield f"{op.name} {uses} {attributes} {[str(r.type) for r in op.results]}"
    for region in op.regions:
        for block in region.blocks:
            for argument in block.arguments:
                names[argument] = len(names)
            yield f"block {[str(a.type) for a in block.arguments]}"
            for inner in block.operations:
                yield from _described(inner.operation, names)


def _elements(value: Any) -> int:
    total = 1
    for size in getattr(value.type, "shape", ()):
        total *= size
    return total
