"""What one step ran, as the backend reports it, and `stitch`, which makes one graph of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchtpu.perf_model.program import NOWHERE, Graph, Op, ProgramError, Provenance, TensorType


class TraceError(ProgramError):
    """A step trace that does not hang together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    """A device buffer that is live before the step.

    `kind` is one of "parameter", "optimizer_state", "gradient", "input", "other".
    """

    size_bytes: int
    kind: str = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One program launch.

    `inputs` and `outputs` are buffer ids in the order of the graph's inputs and outputs; every
    write makes a new id. `reuse` lists (output position, input position) pairs: that output takes
    over that input's memory.
    """

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reuse: tuple[tuple[int, int], ...] = ()
    provenance: Provenance = NOWHERE


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """One step: its calls in order, the buffers live before it, and the ids of those that stay
    alive after it.

    `kinds` names the kind of buffers that the step itself makes (mostly "gradient"); others count
    as activations.
    """

    calls: tuple[Call, ...]
    live_before: Mapping[int, Buffer]
    live_after: frozenset[int]
    kinds: Mapping[int, str] = field(default_factory=dict)
    name: str = "step"

    def fingerprint(self) -> int:
        """Equal for steps that run the same programs on the same buffers up to renaming."""
        names: dict[int, int] = {}

        def rename(ids: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(names.setdefault(i, len(names)) for i in ids)

        calls = tuple(
            (id(c.graph), rename(c.inputs), rename(c.outputs), c.reuse, c.provenance)
            for c in self.calls
        )
        unused = sorted(
            (b.kind, b.size_bytes) for i, b in self.live_before.items() if i not in names
        )
        used = tuple(
            (names[i], b.kind, b.size_bytes) for i, b in self.live_before.items() if i in names
        )
        after = frozenset(names[i] for i in self.live_after if i in names)
        kinds = frozenset((names[i], kind) for i, kind in self.kinds.items() if i in names)
        return hash((calls, frozenset(used), tuple(unused), after, kinds))


def buffer_kinds(trace: StepTrace) -> dict[int, str]:
    """The kind of each buffer that has one: as declared, or taken over from the input whose memory
    it reuses.
    """
    kinds = {buffer: info.kind for buffer, info in trace.live_before.items()}
    kinds.update(trace.kinds)
    for call in trace.calls:
        for output, reused in call.reuse:
            kind = kinds.get(call.inputs[reused])
            if kind is not None:
                kinds.setdefault(call.outputs[output], kind)
    return kinds


def _check(index: int, call: Call) -> None:
    if len(call.inputs) != len(call.graph.inputs) or len(call.outputs) != len(call.graph.outputs):
        raise TraceError(
            f"[trace] call {index} ({call.provenance.op}): expected {len(call.graph.inputs)} "
            f"inputs and {len(call.graph.outputs)} outputs, "
            f"got {len(call.inputs)} and {len(call.outputs)}"
        )


class _Stitcher:
    """Renumbers the ops of each call into one id space."""

    def __init__(self, trace: StepTrace) -> None:
        self.trace = trace
        self.types: list[TensorType] = []
        self.inputs: list[int] = []
        self.ops: list[Op] = []
        self.value_of: dict[int, int] = {}

    def _input(self, index: int, call: Call, buffer: int, type_: TensorType) -> int:
        value = self.value_of.get(buffer)
        if value is not None:
            return value
        if buffer not in self.trace.live_before:
            raise TraceError(
                f"[trace] call {index} ({call.provenance.op}) reads buffer {buffer}, "
                "which no earlier call wrote and which is not live before the step"
            )
        value = len(self.types)
        self.types.append(type_)
        self.inputs.append(value)
        self.value_of[buffer] = value
        return value

    def add(self, index: int, call: Call) -> None:
        """Append the ops of one call."""
        _check(index, call)
        graph, where = call.graph, call.provenance
        values = {
            local: self._input(index, call, buffer, graph.types[local])
            for local, buffer in zip(graph.inputs, call.inputs, strict=True)
        }
        types, ops = self.types, self.ops
        for op in graph.ops:
            results = []
            for local in op.results:
                values[local] = len(types)
                results.append(len(types))
                types.append(graph.types[local])
            ops.append(
                Op(
                    opcode=op.opcode,
                    operands=tuple([values[v] for v in op.operands]),
                    results=tuple(results),
                    attrs=op.attrs,
                    bodies=op.bodies,
                    trip_count=op.trip_count,
                    provenance=op.provenance or where,
                )
            )
        for local, buffer in zip(graph.outputs, call.outputs, strict=True):
            self.value_of[buffer] = values[local]


@dataclass(frozen=True, kw_only=True)
class Stitched:
    """The graph of a whole step, and which value each buffer id became."""

    graph: Graph
    value_of: Mapping[int, int]


def stitch_values(trace: StepTrace) -> Stitched:
    """One graph of the whole step; linear in the number of ops."""
    stitcher = _Stitcher(trace)
    for index, call in enumerate(trace.calls):
        stitcher.add(index, call)
    value_of = stitcher.value_of
    outputs = tuple(dict.fromkeys(value_of[b] for b in sorted(trace.live_after) if b in value_of))
    dying = frozenset(
        value_of[b] for b in trace.live_before if b in value_of and b not in trace.live_after
    )
    graph = Graph(
        types=tuple(stitcher.types),
        inputs=tuple(stitcher.inputs),
        outputs=outputs,
        ops=tuple(stitcher.ops),
        donated=dying,
    )
    return Stitched(graph=graph, value_of=value_of)


def stitch(trace: StepTrace) -> Graph:
    """One graph of the whole step, its ops carrying provenance, its dead inputs donated."""
    return stitch_values(trace).graph
