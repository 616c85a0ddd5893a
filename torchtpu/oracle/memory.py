"""The HBM of a step as the TPU compiler accounts for it; exact where the step is one program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtpu.oracle.segments import Segment
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.hlo.cost import LIBTPU
from torchtpu.perf_model.memory import MemoryEstimate
from torchtpu.perf_model.trace import StepTrace
from torchtpu.targets.compile_batch import Compilation

ESTIMATED = "libtpu, parts added up"


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """The memory of a step, and whether the compiler saw it whole (LIBTPU) or not (ESTIMATED)."""

    estimate: MemoryEstimate
    origin: str


def step_memory(
    trace: StepTrace,
    parts: Sequence[Segment],
    compilations: Sequence[Compilation],
    chip: Chip,
) -> StepMemory:
    """Return the peak over the parts of a step: what a part needs, and what lives beside it.

    A part that the compiler refuses for want of memory needs what its message says.
    """
    sizes = _sizes(trace)
    alive = {b: info.size_bytes for b, info in trace.live_before.items()}
    last = {b: n for n, part in enumerate(parts) for b in (*part.inputs, *part.outputs)}
    dying: dict[int, list[int]] = {}
    for buffer, number in last.items():
        if buffer not in trace.live_after:
            dying.setdefault(number, []).append(buffer)
    peak, at_peak = sum(alive.values()), {"buffers": sum(alive.values())}
    for number, (part, made) in enumerate(zip(parts, compilations, strict=True)):
        own = _own(part, made, sizes)
        beside = sum(alive.values()) - sum(alive.get(b, 0) for b in part.inputs)
        if beside + sum(own.values()) > peak:
            peak, at_peak = beside + sum(own.values()), {"other buffers": beside, **own}
        alive.update((b, sizes[b]) for b in part.outputs)
        for buffer in dying.get(number, ()):
            alive.pop(buffer, None)
    by_kind = tuple(sorted(((k, v) for k, v in at_peak.items() if v), key=lambda i: -i[1]))
    estimate = MemoryEstimate(peak_bytes=peak, usable_bytes=chip.hbm_usable_bytes, by_kind=by_kind)
    return StepMemory(estimate=estimate, origin=LIBTPU if len(parts) == 1 else ESTIMATED)


def _own(part: Segment, made: Compilation, sizes: dict[int, int]) -> dict[str, int]:
    """What a part itself needs, by kind; in place outputs count once."""
    if made.out_of_memory:
        return {"refused by the compiler": made.needed_bytes}
    report = made.report
    if report is None:
        return {
            "arguments": sum(sizes[b] for b in part.inputs),
            "outputs": sum(sizes[b] for b in part.outputs),
        }
    return {
        "arguments": report.argument_bytes,
        "outputs": report.output_bytes - report.alias_bytes,
        "temporaries": report.temporary_bytes,
        "code": report.code_bytes,
    }


def _sizes(trace: StepTrace) -> dict[int, int]:
    found = {b: info.size_bytes for b, info in trace.live_before.items()}
    for call in trace.calls:
        graph = call.graph
        for buffer, value in zip(call.outputs, graph.outputs, strict=True):
            found[buffer] = graph.types[value].size_bytes
        for buffer, value in zip(call.inputs, graph.inputs, strict=True):
            found.setdefault(buffer, graph.types[value].size_bytes)
    return found
