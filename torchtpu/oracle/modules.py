"""Segments as StableHLO: `main` calls the pieces in order, each distinct one a private function.

The call of unit 7 has the location "u7", by which the compiler's output names its origin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any  # jaxlib's MLIR bindings are untyped

from torchtpu.oracle.programs import Piece, called, functions_of, main_of
from torchtpu.oracle.segments import Segment

_UNIT = re.compile(r"(?:^|/)u(\d+)(?:/|$)")


def build(segment: Segment, context: Any) -> Any:
    """Return the MLIR module of a segment whose units all have StableHLO.

    Inputs that die in it are donated; XLA gives their memory to outputs or intermediates.
    """
    from jaxlib.mlir import ir

    with context, ir.Location.unknown():
        module = ir.Module.create()
        _main(segment, module, _Functions(module))
        return module


def unit_of(op_name: str) -> int | None:
    """Return the number of the unit that an instruction of the optimized HLO comes from."""
    found = _UNIT.search(op_name)
    return int(found[1]) if found else None


class _Functions:
    """The private functions of a module: one for each distinct piece, and what they call."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._known: dict[str, str] = {}  # signature of a piece to its function's name
        self._called: dict[tuple[int, str], str] = {}  # by program and old name

    def of(self, piece: Piece) -> str:
        """Return the name of a piece's function, which is made at the first call."""
        if piece.signature not in self._known:
            name = self._known[piece.signature] = f"p{len(self._known)}"
            source = main_of(piece.module)
            made = source.clone() if piece.body is None else _function(piece, source)
            self._add(made, name, piece.module)
        return self._known[piece.signature]

    def _add(self, function: Any, name: str, program: Any) -> None:
        """Add a function of a program, and copies of those that it calls."""
        from jaxlib.mlir import ir

        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        self._module.body.append(function)
        others = {f.attributes["sym_name"].value: f for f in functions_of(program)}
        own = function.attributes["sym_name"].value
        ir.SymbolTable.set_symbol_name(function, name)
        for old in sorted(set(called(function)) & set(others) - {own}):
            key = id(program), old
            is_new = key not in self._called
            new = self._called.setdefault(key, f"q{len(self._called)}")
            ir.SymbolTable.replace_all_symbol_uses(old, new, function)
            if is_new:
                self._add(others[old].clone(), new, program)


def _dialect() -> Any:
    """The operations of functions; their stubs know less than they do."""
    from jaxlib.mlir.dialects import func

    return func


def _function(piece: Piece, source: Any) -> Any:
    """Return a function of the ops of a piece that is a part of its program."""
    from jaxlib.mlir import ir

    func = _dialect()
    assert piece.body is not None
    block = source.regions[0].blocks[0]
    returned = list(block.operations)[-1].operation
    arguments = [block.arguments[n] for n in piece.inputs]
    results = [returned.operands[n] for n in piece.outputs]
    types = ir.FunctionType.get([a.type for a in arguments], [r.type for r in results])
    made = func.FuncOp("piece", types, ip=False)
    entry = made.add_entry_block()
    names = dict(zip(arguments, entry.arguments, strict=True))
    with ir.InsertionPoint(entry):
        for op in piece.body:
            copy = op.clone()
            _rename(copy, names)
            names.update(zip(op.results, copy.results, strict=True))
        func.ReturnOp([names[r] for r in results])
    return made.operation


def _rename(op: Any, names: Mapping[Any, Any]) -> None:
    """Let an op, and those in its regions, use the values of a copy."""
    for position, value in enumerate(op.operands):
        if value in names:
            op.operands[position] = names[value]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                _rename(inner.operation, names)


def _main(segment: Segment, module: Any, functions: _Functions) -> None:
    """Add the public function, which calls the units in order."""
    from jaxlib.mlir import ir

    func = _dialect()
    named = [functions.of(u.piece) for u in segment.units if u.piece is not None]
    with ir.InsertionPoint(module.body):
        types = ir.FunctionType.get(_input_types(segment), [])
        made = func.FuncOp("main", types, visibility="public")
    entry = made.add_entry_block()
    values = dict(zip(segment.inputs, entry.arguments, strict=True))
    with ir.InsertionPoint(entry):
        for number, (unit, name) in enumerate(zip(segment.units, named, strict=True)):
            assert unit.piece is not None
            source = main_of(unit.piece.module)
            outputs = ir.FunctionType(source.attributes["function_type"].value).results
            call = func.CallOp(
                [outputs[n] for n in unit.piece.outputs],
                ir.FlatSymbolRefAttr.get(name),
                [values[b] for b in unit.inputs],
                loc=ir.Location.name(f"u{number}"),
            )
            values.update(zip(unit.outputs, call.results, strict=True))
        returned = [values[b] for b in segment.outputs]
        func.ReturnOp(returned)
    full = ir.FunctionType.get([a.type for a in entry.arguments], [r.type for r in returned])
    made.operation.attributes["function_type"] = ir.TypeAttr.get(full)
    donor = ir.DictAttr.get({"jax.buffer_donor": ir.BoolAttr.get(True)})
    nothing, dying = ir.DictAttr.get({}), set(segment.dying)
    made.arg_attrs = ir.ArrayAttr.get(
        [donor if n in dying else nothing for n in range(len(segment.inputs))]
    )


def _input_types(segment: Segment) -> list[Any]:
    """The MLIR types of a segment's inputs, as the first piece that reads each has them."""
    from jaxlib.mlir import ir

    found: dict[int, Any] = {}
    for unit in segment.units:
        assert unit.piece is not None
        source = main_of(unit.piece.module)
        inputs = ir.FunctionType(source.attributes["function_type"].value).inputs
        for buffer, position in zip(unit.inputs, unit.piece.inputs, strict=True):
            found.setdefault(buffer, inputs[position])
    return [found[buffer] for buffer in segment.inputs]
