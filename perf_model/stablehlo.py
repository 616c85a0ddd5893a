"""Reads a StableHLO module (MLIR object, text or bytecode) into a `Graph`; jaxlib is imported only
when called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any  # jaxlib's MLIR bindings are untyped

from torchtpu.perf_model.program import (
    Graph,
    GraphBuilder,
    Op,
    ProgramError,
    Provenance,
    TensorType,
)
from torchtpu.perf_model.stablehlo_attrs import constant_attrs, read_attrs
from torchtpu.perf_model.trip_count import trip_count
from torchtpu.private import jax as private

_CALLS = frozenset({"func.call", "call"})
_RETURNS = frozenset({"func.return", "stablehlo.return", "mhlo.return", "sdy.return"})
_BODIES = frozenset({"while", "case", "if"})
_MAX_LOCATIONS = 16


def read(module: object) -> Graph:
    """The program of the module's public `main` function, with every call inlined.

    module: an `ir.Module`, StableHLO text, MLIR bytecode or a portable artifact.
    Loops keep their bodies as nested graphs; the region of a reduce, scatter or sort is summarised
    in the attributes "reducer" (the opcode of its last op) and "region_ops". Inputs that alias an
    output are donated. Raises ProgramError on text that does not parse, a module without functions,
    or dynamic shapes.
    """
    if isinstance(module, str | bytes):
        module = _parse(module)
    return _Reader(module).main()


def _parse(source: str | bytes) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    context = ir.Context()
    registry = ir.DialectRegistry()
    private.register_dialects(registry)
    context.append_dialect_registry(registry)
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    context.allow_unregistered_dialects = True
    try:
        if isinstance(source, bytes) and b"StableHLO_v" in source[:64]:
            return stablehlo.deserialize_portable_artifact(context, source)
        return ir.Module.parse(source, context)
    except (ValueError, ir.MLIRError) as error:
        raise ProgramError(f"[stablehlo] the module does not parse: {error}") from error


def _short(name: str) -> str:
    """stablehlo.add -> add; other dialects keep their prefix (chlo.erf)."""
    return name.removeprefix("stablehlo.").removeprefix("mhlo.")


class _Frame:
    """Values of a block being read; a nested region also sees those of the frame around it."""

    def __init__(self, builder: GraphBuilder, outer: _Frame | None = None) -> None:
        self.builder = builder
        self.outer = outer
        self.ids: dict[Any, int] = {}
        self.captures: dict[int, int] = {}
        self.constants: dict[int, Op] = {}

    def id_of(self, value: Any) -> int:
        """The id of an MLIR value; a value from around the region becomes a captured input (or a
        constant).
        """
        found = self.ids.get(value)
        if found is not None:
            return found
        if self.outer is None:
            raise ProgramError(f"[stablehlo] value used before it is defined: {value}")
        source = self.outer.id_of(value)
        type_ = self.outer.builder.types[source]
        constant = self.outer.constants.get(source)
        if constant is not None:
            local = self._copy(constant, type_)
        else:
            local = self.builder.input(type_.shape, type_.dtype)
            self.captures[source] = local
        self.ids[value] = local
        return local

    def _copy(self, constant: Op, type_: TensorType) -> int:
        """A constant of an outer block, repeated here."""
        local = self.builder.value(type_.shape, type_.dtype)
        self.constants[local] = replace(constant, results=(local,))
        self.builder.ops.append(self.constants[local])
        return local


class _Reader:
    """Walks the functions of one module."""

    def __init__(self, module: Any) -> None:
        self.types: dict[Any, TensorType] = {}
        self.functions = {
            op.attributes["sym_name"].value: op
            for op in (o.operation for o in module.body.operations)
            if op.name == "func.func"
        }
        if not self.functions:
            raise ProgramError("[stablehlo] the module has no function")

    def main(self) -> Graph:
        """The graph of `main`, or of the only function."""
        function = self.functions.get("main") or next(iter(self.functions.values()))
        block = function.regions[0].blocks[0]
        frame = _Frame(GraphBuilder())
        for argument in block.arguments:
            frame.ids[argument] = self._new_input(frame, argument)
        outputs = self._block(block, frame, None)
        donated = _donated(function, frame.builder.inputs)
        return frame.builder.build(tuple(outputs), donated)

    def _type(self, value: Any) -> TensorType:
        mlir_type = value.type
        found = self.types.get(mlir_type)
        if found is None:
            found = self.types[mlir_type] = _tensor_type(mlir_type)
        return found

    def _new_input(self, frame: _Frame, value: Any) -> int:
        type_ = self._type(value)
        return frame.builder.input(type_.shape, type_.dtype)

    def _block(self, block: Any, frame: _Frame, where: Provenance | None) -> list[int]:
        """Read all ops of a block; the ids of what it returns."""
        for op in block.operations:
            operation = op.operation
            name = operation.name
            if name in _RETURNS:
                return [frame.id_of(v) for v in operation.operands]
            callee = self._callee(name, operation)
            if callee is not None:
                self._inline(callee, operation, frame, _provenance(operation) or where)
            else:
                self._op(_short(name), operation, frame, _provenance(operation) or where)
        return []

    def _callee(self, name: str, operation: Any) -> Any | None:
        if name in _CALLS:
            symbol = operation.attributes["callee"].value
        elif name == "stablehlo.composite":
            symbol = operation.attributes["decomposition"].value
        else:
            return None
        if symbol not in self.functions:
            raise ProgramError(f"[stablehlo] call of an unknown function @{symbol}")
        return self.functions[symbol]

    def _inline(
        self, function: Any, operation: Any, frame: _Frame, where: Provenance | None
    ) -> None:
        block = function.regions[0].blocks[0]
        inner = _Frame(frame.builder)
        inner.constants = frame.constants
        for argument, operand in zip(block.arguments, operation.operands, strict=True):
            inner.ids[argument] = frame.id_of(operand)
        outputs = self._block(block, inner, where)
        frame.ids.update(zip(operation.results, outputs, strict=True))

    def _op(self, opcode: str, operation: Any, frame: _Frame, where: Provenance | None) -> None:
        operands = [frame.id_of(v) for v in operation.operands]
        types = [self._type(v) for v in operation.results]
        builder = frame.builder
        attrs = self._attrs(opcode, operation, types)
        bodies: tuple[Graph, ...] = ()
        if opcode in _BODIES:
            bodies, captured = self._nested(operation, frame)
            operands += captured
        results = tuple(builder.value(t.shape, t.dtype) for t in types)
        frame.ids.update(zip(operation.results, results, strict=True))
        trips = trip_count(bodies, self._initial(operands, frame)) if opcode == "while" else None
        read_op = Op(
            opcode=opcode,
            operands=tuple(operands),
            results=results,
            attrs=attrs,
            bodies=bodies,
            trip_count=trips,
            provenance=where,
        )
        builder.ops.append(read_op)
        if opcode == "constant":
            frame.constants[results[0]] = read_op

    def _attrs(self, opcode: str, operation: Any, types: Sequence[TensorType]) -> Mapping[str, Any]:
        if opcode == "constant":
            return constant_attrs(operation, types[0].elements, types[0].dtype)
        attrs = read_attrs(opcode, operation)
        if opcode in _BODIES or not len(operation.regions):
            return attrs
        return {**attrs, **_region_summary(operation)}

    def _nested(self, operation: Any, frame: _Frame) -> tuple[tuple[Graph, ...], list[int]]:
        """The regions as graphs whose inputs are the block arguments and then all captures."""
        frames: list[_Frame] = []
        outputs: list[list[int]] = []
        for region in operation.regions:
            block = region.blocks[0]
            inner = _Frame(GraphBuilder(), frame)
            for argument in block.arguments:
                inner.ids[argument] = self._new_input(inner, argument)
            outputs.append(self._block(block, inner, None))
            frames.append(inner)
        captured = list(dict.fromkeys(source for inner in frames for source in inner.captures))
        graphs = []
        for inner, results in zip(frames, outputs, strict=True):
            own = [i for i in inner.builder.inputs if i not in set(inner.captures.values())]
            for source in captured:
                if source not in inner.captures:
                    type_ = frame.builder.types[source]
                    inner.captures[source] = inner.builder.value(type_.shape, type_.dtype)
            inner.builder.inputs = own + [inner.captures[source] for source in captured]
            graphs.append(inner.builder.build(tuple(results)))
        return tuple(graphs), captured

    def _initial(self, operands: Sequence[int], frame: _Frame) -> list[int | None]:
        """The constant integer value of each operand, None where there is none."""
        found: list[int | None] = []
        for operand in operands:
            constant = frame.constants.get(operand)
            value = constant.attrs.get("value") if constant is not None else None
            found.append(value if isinstance(value, int) else None)
        return found


def _tensor_type(mlir_type: Any) -> TensorType:
    from jaxlib.mlir import ir

    if not isinstance(mlir_type, ir.RankedTensorType):
        text = str(mlir_type)
        if "token" in text or text.startswith("tuple"):
            return TensorType(shape=(), dtype="token")
        raise ProgramError(f"[stablehlo] expected a ranked tensor type, got {text}")
    if not mlir_type.has_static_shape:
        raise ProgramError(
            f"[stablehlo] dynamic shapes have no cost, expected static ones, got {mlir_type}"
        )
    return TensorType(shape=tuple(mlir_type.shape), dtype=str(mlir_type.element_type))


def _provenance(operation: Any) -> Provenance | None:
    """The provenance in the op's location, under any name, fused and call-site locations."""
    pending, seen = [operation.location], 0
    while pending and seen < _MAX_LOCATIONS:
        location, seen = pending.pop(), seen + 1
        name = getattr(location, "name_str", None)
        if name is not None and (found := Provenance.from_location(name)) is not None:
            return found
        for part in ("child_loc", "callee", "caller"):
            inner = getattr(location, part, None)
            if inner is not None:
                pending.append(inner)
        pending.extend(getattr(location, "locations", ()))
    return None


def _region_summary(operation: Any) -> dict[str, Any]:
    """Of a region without control flow: its last opcode and its number of ops, less the return."""
    names = [
        _short(op.operation.name)
        for region in operation.regions
        for block in region.blocks
        for op in block.operations
        if op.operation.name not in _RETURNS
    ]
    return {"reducer": names[-1] if names else "", "region_ops": len(names)}


def _donated(function: Any, inputs: Sequence[int]) -> frozenset[int]:
    """Inputs marked by JAX's argument attributes as memory that an output may take over."""
    if "arg_attrs" not in function.attributes:
        return frozenset()
    marked = []
    for value, attrs in zip(inputs, function.attributes["arg_attrs"], strict=True):
        if "tf.aliasing_output" in attrs or "jax.buffer_donor" in attrs:
            marked.append(value)
    return frozenset(marked)
