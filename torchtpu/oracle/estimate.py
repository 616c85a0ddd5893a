"""The estimate of a step by the TPU compiler: its segments compiled, priced and put together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torchtpu.oracle import memory, modules
from torchtpu.oracle.collectives import pricer
from torchtpu.oracle.compiler import OracleCompiler
from torchtpu.oracle.programs import Programs
from torchtpu.oracle.segments import Segment, calls, segments
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.constants import constants
from torchtpu.perf_model.hlo import reader as hlo
from torchtpu.perf_model.hlo import timeline as hlo_timeline
from torchtpu.perf_model.hlo.cost import LIBTPU, MODEL
from torchtpu.perf_model.hlo.timeline import Row, Timeline
from torchtpu.perf_model.kernel_cost import KernelCost
from torchtpu.perf_model.network.topology import Topology
from torchtpu.perf_model.program import Provenance
from torchtpu.perf_model.roofline import DearOp, StepEstimate, program
from torchtpu.perf_model.trace import StepTrace
from torchtpu.targets.compile_batch import Compilation

_DEAREST = 10
_LAYER = re.compile(r"\.\d+(?=\.|$)")
_MIXED = "libtpu+model"


class LibtpuOracle:
    """Estimates steps with libtpu. Raises TargetError at once where there is none that works.

    topology: many devices that run the step; None is one device of the chip.
    """

    def __init__(self, chip: Chip, topology: Topology | None = None) -> None:
        self._chip, self._topology = chip, topology
        self.compiler = OracleCompiler(topology.name if topology else alone(chip))
        self._programs = Programs()
        self._known: dict[object, _Answer] = {}

    def estimate(self, trace: StepTrace, model: StepEstimate) -> StepEstimate:
        """Return the model's estimate of a step with what the compiler knows better.

        Time: the compiler's cycles of kernels with matmuls, the model's rules on the compiled
        program for the others. Memory: exact where the step is one program.
        """
        divide = segments if model.mode == "fused" else calls
        parts = divide(trace, self._programs)
        self._compile(parts)
        answers = [self._known[part.key] for part in parts]
        total = _Total(self._chip)
        for part, answer in zip(parts, answers, strict=True):
            total.add(trace, part, answer)
        programs = 1 if model.mode == "fused" else len(trace.calls)
        launch_s = constants().launch_s * programs
        total.count("launch", launch_s)
        if model.mode == "strict":
            waiting = constants().host_dispatch_s * programs - total.time_s
            total.count("launch", max(0.0, waiting))
        held = memory.step_memory(trace, parts, [a.compilation for a in answers], self._chip)
        return total.estimate(model, held, self._remarks(parts, answers))

    def estimate_steps(
        self, traces: Sequence[StepTrace], models: Sequence[StepEstimate]
    ) -> tuple[StepEstimate, ...]:
        """Return the estimates of steps in order; steps that the model finds equal are one."""
        known: dict[int, StepEstimate] = {}
        for trace, model in zip(traces, models, strict=True):
            if id(model) not in known:
                known[id(model)] = self.estimate(trace, model)
        return tuple(known[id(model)] for model in models)

    def _compile(self, parts: Sequence[Segment]) -> None:
        """Ask the compiler for what is not known yet, all at once."""
        new = {part.key: part for part in parts if part.key not in self._known}
        jobs = {
            f"s{n}": (modules.build(part, self._programs.context), self._devices(part))
            for n, part in enumerate(new.values())
            if part.compiles
        }
        made = self.compiler.compile(jobs)
        for n, (key, part) in enumerate(new.items()):
            self._known[key] = self._answer(part, made.get(f"s{n}", _NO_PROGRAM))

    def _devices(self, part: Segment) -> int:
        """One device, or all of them for what has collectives."""
        return self._topology.devices if self._topology and part.communicates else 1

    def _answer(self, part: Segment, made: Compilation) -> _Answer:
        if made.report is None:
            return _Answer(compilation=made)
        module = hlo.read(made.hlo)
        collective = pricer(self._topology) if self._topology else hlo_timeline.unpriced
        return _Answer(
            compilation=made, timeline=hlo_timeline.timeline(module, self._chip, collective)
        )

    def _remarks(self, parts: Sequence[Segment], answers: Sequence[_Answer]) -> tuple[str, ...]:
        """What a reader must know: how many programs there were, and what was refused."""
        distinct = len({part.key for part in parts})
        remarks = [
            f"libtpu {self.compiler.version}, {self.compiler.topology}: {len(parts)} "
            f"part{'s' * (len(parts) > 1)} of the step, {distinct} different"
        ]
        failures = Counter(a.compilation.failure for a in answers if a.timeline is None)
        for failure, count in failures.most_common(3):
            remarks.append(f"{count} of {len(parts)} parts priced by the model: {failure}")
        return tuple(remarks)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What the compiler says of a segment; no timeline where it has not compiled."""

    compilation: Compilation
    timeline: Timeline | None = None


_NO_PROGRAM = Compilation(failure="there is no StableHLO of it")


def alone(chip: Chip) -> str:
    """Return the smallest topology of a chip that libtpu takes with its own hosts, 2x2 chips."""
    has_three = chip.value("ici.torus_dimensions") == 3
    return f"{chip.name}:2x2x1" if has_three else f"{chip.name}:2x2"


@dataclass(slots=True)
class _Sum:
    """Added kernels of one place in the program."""

    count: int = 0
    time_s: float = 0.0
    bounds: Counter[str] = field(default_factory=Counter)
    origins: set[str] = field(default_factory=set)


class _Total:
    """Adds the rows of all segments up: time, bounds, bytes, and the dearest places."""

    def __init__(self, chip: Chip) -> None:
        self._chip = chip
        self.time_s = self.hbm_bytes = self.unmodelled_s = 0.0
        self.kernels = 0
        self._bounds: Counter[str] = Counter()
        self._origins: Counter[str] = Counter()
        self._unmodelled: Counter[str] = Counter()
        self._places: dict[tuple[str, str, str], _Sum] = {}

    def count(self, bound: str, seconds: float) -> None:
        """Add time that belongs to no kernel."""
        self.time_s += seconds
        self._bounds[bound] += seconds  # type: ignore[assignment]  # counts seconds

    def add(self, trace: StepTrace, part: Segment, answer: _Answer) -> None:
        """Add a segment."""
        if answer.timeline is None:
            for unit in part.units:
                call = trace.calls[unit.call]
                made = program(call.graph, self._chip)
                share = len(unit.outputs) / max(1, len(call.outputs))
                self._cost(_scaled(made.total, share), call.provenance, MODEL, "program")
            return
        for row in answer.timeline.rows:
            self._cost(row.cost, _place(trace, part, row), row.origin, row.opcode, row.count)

    def _cost(
        self, cost: KernelCost, place: Provenance, origin: str, opcode: str, count: int = 1
    ) -> None:
        self.time_s += cost.time_s
        self.hbm_bytes += cost.hbm_bytes
        self.unmodelled_s += cost.unmodelled_s
        self.kernels += count
        self._unmodelled.update(cost.unmodelled)
        self._origins[origin] += cost.time_s  # type: ignore[assignment]  # counts seconds
        module = _LAYER.sub(".*", place.module)
        found = self._places.setdefault((place.op or opcode, module, place.source), _Sum())
        found.count += count
        found.time_s += cost.time_s
        found.origins.add(origin)
        for bound, seconds in cost.by_bound.items():
            self._bounds[bound] += seconds  # type: ignore[assignment]  # counts seconds
            found.bounds[bound] += seconds  # type: ignore[assignment]

    def estimate(
        self, model: StepEstimate, held: memory.StepMemory, remarks: tuple[str, ...]
    ) -> StepEstimate:
        """Return the model's estimate with these numbers in it."""
        per_s = 1.0 / self.time_s if self.time_s else 0.0
        intensity = model.matmul_flops / self.hbm_bytes if self.hbm_bytes else float("inf")
        share = self._origins[LIBTPU] * per_s
        return replace(
            model,
            time_s=self.time_s,
            hbm_bytes=self.hbm_bytes,
            mfu=model.matmul_flops * per_s / model.peak_flops_per_s,
            achieved_flops_per_s=model.matmul_flops * per_s,
            attainable_flops_per_s=min(
                model.peak_flops_per_s, intensity * self._chip.hbm_bytes_per_s
            ),
            achieved_bytes_per_s=self.hbm_bytes * per_s,
            bound=max(self._bounds, key=lambda k: self._bounds[k], default="launch"),
            shares={k: v * per_s for k, v in self._bounds.items()},
            kernels=self.kernels,
            exposed_s=self._bounds["network"],
            unmodelled_share=self.unmodelled_s * per_s,
            unmodelled=tuple(sorted(self._unmodelled.items(), key=lambda i: (-i[1], i[0]))),
            memory=held.estimate,
            memory_origin=held.origin,
            dearest=self._dearest(),
            oracle=LIBTPU,
            remarks=(*remarks, f"{share:.0%} of the time is the compiler's, the rest the model's"),
        )

    def _dearest(self) -> tuple[DearOp, ...]:
        ordered = sorted(self._places.items(), key=lambda item: (-item[1].time_s, item[0]))
        return tuple(
            DearOp(
                op=op,
                module=module,
                source=source,
                count=found.count,
                time_s=found.time_s,
                share=found.time_s / self.time_s if self.time_s else 0.0,
                bound=max(found.bounds, key=lambda k: found.bounds[k], default="launch"),
                origin=next(iter(found.origins)) if len(found.origins) == 1 else _MIXED,
            )
            for (op, module, source), found in ordered[:_DEAREST]
        )


def _place(trace: StepTrace, part: Segment, row: Row) -> Provenance:
    """Where in the user's program a kernel comes from; the compiler's own copies from nowhere."""
    number = modules.unit_of(row.op_name)
    if number is None or number >= len(part.units):
        return Provenance(op=f"{row.opcode} (compiler)")
    return trace.calls[part.units[number].call].provenance


def _scaled(cost: KernelCost, share: float) -> KernelCost:
    return replace(
        cost,
        time_s=cost.time_s * share,
        hbm_bytes=cost.hbm_bytes * share,
        unmodelled_s=cost.unmodelled_s * share,
        by_bound={k: v * share for k, v in cost.by_bound.items()},
    )
