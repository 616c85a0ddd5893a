"""The program: a small SSA graph of tensor ops, the form that every cost is computed from.

Opcodes are StableHLO's without the dialect prefix ("dot_general", "add"); dtypes are MLIR's
spelling ("bf16", "f32", "i64", "ui8", "i1", "f8E5M2", "complex<f32>").
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

AttrValue = int | float | str | bool | tuple[int, ...] | tuple[str, ...]
NO_ATTRS: Mapping[str, AttrValue] = MappingProxyType({})
_LOCATION_PREFIX = "torchtpu:"


class ProgramError(ValueError):
    """A program that cannot be read or is not well formed."""


@functools.cache
def dtype_bits(dtype: str) -> int:
    """Bits one element takes in memory; i1 takes a byte, a token nothing."""
    if dtype == "token":
        return 0
    if dtype == "i1":
        return 8
    if dtype.startswith("complex<"):
        return 2 * dtype_bits(dtype[len("complex<") : -1])
    match = re.match(r"(?:bf|f|ui|i|tf)(\d+)", dtype)
    if match is None:
        raise ProgramError(f"[program] unknown dtype, expected an MLIR element type, got {dtype!r}")
    return int(match.group(1))


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorType:
    """Shape and dtype of a value."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the dense value, without tile padding."""
        return (self.elements * dtype_bits(self.dtype) + 7) // 8

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype])


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Where an op comes from: the aten op, the module path and the user's source line."""

    op: str = ""
    module: str = ""
    source: str = ""

    def to_location(self) -> str:
        """The name to give an MLIR NameLoc so that `stablehlo.read` finds this again."""
        return f"{_LOCATION_PREFIX}{self.op}|{self.module}|{self.source}"

    @staticmethod
    def from_location(name: str) -> Provenance | None:
        """The inverse of `to_location`; None for a name that did not come from it."""
        if not name.startswith(_LOCATION_PREFIX):
            return None
        parts = name[len(_LOCATION_PREFIX) :].split("|", 2)
        if len(parts) != 3:
            return None
        return Provenance(op=parts[0], module=parts[1], source=parts[2])


NOWHERE = Provenance()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Op:
    """One operation. Operands and results are value ids: indices into `Graph.types`.

    `bodies` holds the nested programs of control flow: (condition, body) of a while, the branches
    of a case. `trip_count` is the number of iterations of a while, None where it is not a constant.
    """

    opcode: str
    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    attrs: Mapping[str, AttrValue] = field(default_factory=lambda: NO_ATTRS)
    bodies: tuple[Graph, ...] = ()
    trip_count: int | None = None
    provenance: Provenance | None = None

    def ints(self, name: str) -> tuple[int, ...]:
        """The integer-list attribute `name`; () where it is absent."""
        value = self.attrs.get(name, ())
        return tuple(int(v) for v in value) if isinstance(value, tuple) else ()

    def text(self, name: str, default: str = "") -> str:
        """The attribute `name` as text."""
        return str(self.attrs.get(name, default))

    def int(self, name: str, default: int) -> int:
        """The integer attribute `name`."""
        value = self.attrs.get(name, default)
        return value if isinstance(value, int) else default


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, weakref_slot=True)
class Graph:
    """A program: ops in execution order over SSA values. Compared and hashed by identity."""

    types: tuple[TensorType, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ops: tuple[Op, ...]
    donated: frozenset[int] = frozenset()

    def type_of(self, value: int) -> TensorType:
        """The type of a value id."""
        return self.types[value]

    @property
    def op_count(self) -> int:
        """Ops including those of nested programs (each counted once)."""
        return len(self.ops) + sum(body.op_count for op in self.ops for body in op.bodies)


class GraphBuilder:
    """Grows a Graph value by value, op by op; used by the readers, the stitcher and tests."""

    def __init__(self) -> None:
        self.types: list[TensorType] = []
        self.inputs: list[int] = []
        self.ops: list[Op] = []

    def value(self, shape: tuple[int, ...], dtype: str) -> int:
        """A new value id of the given type."""
        self.types.append(TensorType(shape=shape, dtype=dtype))
        return len(self.types) - 1

    def input(self, shape: tuple[int, ...], dtype: str) -> int:
        """A new program input."""
        self.inputs.append(self.value(shape, dtype))
        return self.inputs[-1]

    def op(
        self,
        opcode: str,
        operands: tuple[int, ...],
        shape: tuple[int, ...],
        dtype: str,
        *,
        provenance: Provenance | None = None,
        **attrs: AttrValue,
    ) -> int:
        """Append an op with one result of the given type; returns the result's id."""
        result = self.value(shape, dtype)
        self.ops.append(
            Op(
                opcode=opcode,
                operands=operands,
                results=(result,),
                attrs=attrs or NO_ATTRS,
                provenance=provenance,
            )
        )
        return result

    def build(self, outputs: tuple[int, ...], donated: frozenset[int] = frozenset()) -> Graph:
        """The finished graph. `donated` are input value ids whose memory the program may reuse."""
        return Graph(
            types=tuple(self.types),
            inputs=tuple(self.inputs),
            outputs=outputs,
            ops=tuple(self.ops),
            donated=donated,
        )
