"""Estimates a step: its time, what bounds it, the memory it needs and which ops are dearest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakKeyDictionary

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.constants import constants
from torchtpu.perf_model.fusion import Kernel, Schedule, fuse
from torchtpu.perf_model.kernel_cost import CostSum, KernelCost, kernel_cost
from torchtpu.perf_model.memory import (
    MemoryEstimate,
    fused_memory,
    strict_memory,
    temporary_bytes,
)
from torchtpu.perf_model.network.collective_ops import exchange
from torchtpu.perf_model.program import NOWHERE, Graph, Provenance
from torchtpu.perf_model.trace import StepTrace, stitch_values

MODES = ("fused", "strict")
_DEAREST = 10


class Timeline(Protocol):
    """What a network makes of a step; seconds, as torchtpu.sim.step.Timeline."""

    @property
    def time_s(self) -> float:
        """From start to end."""

    @property
    def exposed_s(self) -> float:
        """The core waits for collectives."""

    @property
    def network_s(self) -> Mapping[tuple[str, str], float]:
        """Collectives run, by (kind, fabric)."""

    @property
    def waits(self) -> Mapping[int, float]:
        """The core waited for which kernel of the schedule."""


class Network(Protocol):
    """Many devices that run the same step: a simulator of a higher layer."""

    @property
    def name(self) -> str:
        """The topology, such as "16x16"."""

    @property
    def devices(self) -> int:
        """How many devices."""

    def run(self, schedule: Schedule, costs: Sequence[KernelCost]) -> Timeline:
        """Lay kernels of known cost and collectives out in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DearOp:
    """Kernels of one aten op, module path (layer numbers as *) and source line, added up."""

    op: str
    module: str
    source: str
    count: int
    time_s: float
    share: float
    bound: str
    origin: str = "model"  # "libtpu": the compiler's cycles; "libtpu+model": of some kernels


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEstimate:
    """The estimate of one step on one device, of one or of many.

    time_s: seconds. network_s: how long collectives run, by "kind (fabric)", and exposed_s how long
    the device waits for them.
    matmul_flops: 2 x multiply-adds of matmuls and convolutions, as executed, without padding.
    mfu: matmul_flops / (time_s x bfloat16 peak). attainable_flops_per_s: min(peak, intensity x peak
    HBM bandwidth).
    shares: part of the time bound by "mxu", "vpu", "hbm", "network", "launch"; they sum to 1.
    unmodelled_share: part of the time in kernels that hold an op without a cost rule, whose memory
    traffic alone is counted.
    """

    name: str
    chip: str
    mode: str
    time_s: float
    matmul_flops: float
    hbm_bytes: float
    mfu: float
    achieved_flops_per_s: float
    attainable_flops_per_s: float
    peak_flops_per_s: float
    achieved_bytes_per_s: float
    attainable_bytes_per_s: float
    bound: str
    shares: Mapping[str, float]
    programs: int
    kernels: int
    unmodelled_share: float
    unmodelled: tuple[tuple[str, int], ...]
    memory: MemoryEstimate
    dearest: tuple[DearOp, ...]
    oracle: str = "model"
    memory_origin: str = "model"
    remarks: tuple[str, ...] = ()
    hints: tuple[tuple[str, int], ...] = ()
    topology: str = ""
    devices: int = 1
    exposed_s: float = 0.0
    network_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramCost:
    """A program by itself: the sum of its kernels (without its launch), each with its origin."""

    total: KernelCost
    kernels: tuple[tuple[Provenance | None, str, KernelCost], ...]
    temporary_bytes: int


_PROGRAMS: WeakKeyDictionary[Graph, dict[str, ProgramCost]] = WeakKeyDictionary()


def program(graph: Graph, chip: Chip) -> ProgramCost:
    """The cost of a program, computed once per graph and chip. Raises IncompleteChip."""
    by_chip = _PROGRAMS.setdefault(graph, {})
    if chip.name not in by_chip:
        by_chip[chip.name] = _program(graph, chip.require_complete())
    return by_chip[chip.name]


def _program(graph: Graph, chip: Chip) -> ProgramCost:
    schedule, total, kernels = fuse(graph), CostSum(), []
    for kernel in schedule.kernels:
        cost, hero = kernel_cost(schedule, kernel, chip), graph.ops[kernel.hero]
        total.add(cost)
        kernels.append((hero.provenance, hero.opcode, cost))
    return ProgramCost(
        total=total.result(), kernels=tuple(kernels), temporary_bytes=temporary_bytes(schedule)
    )


def program_time_s(graph: Graph, chip: Chip) -> float:
    """Seconds that one program keeps a device busy, without the gap before it. Cached per graph."""
    return program(graph, chip).total.time_s


class _Dear:
    """Adds kernel costs up by where they come from."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], tuple[int, float, dict[str, float]]] = {}
        self._modules: dict[str, str] = {}

    def add(self, where: Provenance, fallback: str, cost: KernelCost) -> None:
        """Count one kernel or program."""
        module = self._modules.get(where.module)
        if module is None:
            module = self._modules[where.module] = re.sub(r"\.\d+(?=\.|$)", ".*", where.module)
        key = (where.op or fallback, module, where.source)
        count, seconds, bounds = self.rows.get(key, (0, 0.0, {}))
        for bound, part in cost.by_bound.items():
            bounds[bound] = bounds.get(bound, 0.0) + part
        self.rows[key] = (count + 1, seconds + cost.time_s, bounds)

    def dearest(self, total_s: float) -> tuple[DearOp, ...]:
        """The dearest rows, each with its share of the total."""
        ordered = sorted(self.rows.items(), key=lambda item: (-item[1][1], item[0]))
        return tuple(
            DearOp(
                op=op,
                module=module,
                source=source,
                count=count,
                time_s=seconds,
                share=seconds / total_s if total_s else 0.0,
                bound=max(bounds, key=lambda k: bounds[k], default="launch"),
            )
            for (op, module, source), (count, seconds, bounds) in ordered[:_DEAREST]
        )


def estimate_step(
    trace: StepTrace, chip: Chip, mode: str = "fused", network: Network | None = None
) -> StepEstimate:
    """Estimate one step. mode "fused": the whole step is one program; "strict": every call is its
    own program. Without a network, collectives count as unmodelled.

    Raises ValueError for an unknown mode, IncompleteChip, TraceError.
    """
    if mode not in MODES:
        raise ValueError(
            f"[estimate] unknown mode, expected one of {', '.join(MODES)}, got {mode!r}"
        )
    chip.require_complete()
    return (_fused if mode == "fused" else _strict)(trace, chip, network)


def estimate_steps(
    traces: Sequence[StepTrace],
    chip: Chip,
    mode: str = "fused",
    network: Network | None = None,
) -> tuple[StepEstimate, ...]:
    """Estimate steps in order; steps with the same fingerprint are computed once."""
    known: dict[int, StepEstimate] = {}
    found = []
    for trace in traces:
        key = trace.fingerprint()
        if key not in known:
            known[key] = estimate_step(trace, chip, mode, network)
        found.append(known[key])
    return tuple(found)


def _on_core(schedule: Schedule, kernel: Kernel, chip: Chip, network: Network | None) -> KernelCost:
    """What a kernel costs the core: nothing where the network does it, or nobody is to be asked."""
    one = exchange(schedule.graph.ops[kernel.hero], schedule.graph)
    if one is not None and (network is not None or len(one.group) == 1):
        return KernelCost(kernels=1)
    return kernel_cost(schedule, kernel, chip)


class _Steps:
    """Adds the kernels of schedules up, and what the network adds to them."""

    def __init__(self, chip: Chip, network: Network | None) -> None:
        self.total, self.dear = CostSum(), _Dear()
        self.exposed_s = 0.0
        self.network_s: dict[str, float] = {}
        self._chip, self._network = chip, network
        self._known: dict[Graph, tuple[list[KernelCost], Timeline | None]] = {}

    def add(self, schedule: Schedule, where: Provenance = NOWHERE) -> None:
        """Add the kernels of a schedule that runs after what was added before."""
        if schedule.graph not in self._known:
            self._known[schedule.graph] = self._run(schedule)
        costs, timeline = self._known[schedule.graph]
        for kernel, cost in zip(schedule.kernels, costs, strict=True):
            self._add(schedule, kernel, cost, where)
        if timeline is not None:
            self._wait(schedule, timeline, where)

    def _run(self, schedule: Schedule) -> tuple[list[KernelCost], Timeline | None]:
        costs = [_on_core(schedule, k, self._chip, self._network) for k in schedule.kernels]
        if self._network is None or all(cost.time_s for cost in costs):
            return costs, None
        return costs, self._network.run(schedule, costs)

    def _add(self, schedule: Schedule, kernel: Kernel, cost: KernelCost, where: Provenance) -> None:
        hero = schedule.graph.ops[kernel.hero]
        self.total.add(cost)
        self.dear.add(hero.provenance or where, hero.opcode, cost)

    def _wait(self, schedule: Schedule, timeline: Timeline, where: Provenance) -> None:
        self.exposed_s += timeline.exposed_s
        for (kind, fabric), seconds in timeline.network_s.items():
            name = f"{kind} ({fabric})"
            self.network_s[name] = self.network_s.get(name, 0.0) + seconds
        for number, seconds in timeline.waits.items():
            waited = KernelCost(time_s=seconds, by_bound={"network": seconds})
            self._add(schedule, schedule.kernels[number], waited, where)


def _fused(trace: StepTrace, chip: Chip, network: Network | None) -> StepEstimate:
    stitched = stitch_values(trace)
    schedule = fuse(stitched.graph)
    steps = _Steps(chip, network)
    steps.add(schedule)
    launch_s = constants().launch_s if schedule.kernels else 0.0
    steps.total.add(KernelCost(time_s=launch_s, by_bound={"launch": launch_s}))
    memory = fused_memory(trace, stitched, schedule, chip.hbm_usable_bytes)
    return _estimate(trace, chip, "fused", steps, min(1, len(trace.calls)), memory, network)


def _strict(trace: StepTrace, chip: Chip, network: Network | None) -> StepEstimate:
    known, steps = constants(), _Steps(chip, network)
    schedules: dict[Graph, Schedule] = {}
    temporaries: dict[Graph, int] = {}
    for call in trace.calls:
        if call.graph not in schedules:
            schedules[call.graph] = fuse(call.graph)
            temporaries[call.graph] = temporary_bytes(schedules[call.graph])
        steps.add(schedules[call.graph], call.provenance)
    total, programs = steps.total, len(trace.calls)
    launch_s = known.launch_s * programs
    waiting_s = max(0.0, known.host_dispatch_s * programs - (total.time_s + launch_s))
    total.add(KernelCost(time_s=launch_s + waiting_s, by_bound={"launch": launch_s + waiting_s}))
    memory = strict_memory(trace, temporaries, chip.hbm_usable_bytes)
    return _estimate(trace, chip, "strict", steps, programs, memory, network)


def _estimate(
    trace: StepTrace,
    chip: Chip,
    mode: str,
    steps: _Steps,
    programs: int,
    memory: MemoryEstimate,
    network: Network | None,
) -> StepEstimate:
    cost = steps.total.result()
    time_s = cost.time_s
    peak = chip.peak_flops_per_s()
    intensity = cost.matmul_flops / cost.hbm_bytes if cost.hbm_bytes else float("inf")
    per_s = 1.0 / time_s if time_s else 0.0
    return StepEstimate(
        name=trace.name,
        chip=chip.name,
        mode=mode,
        time_s=time_s,
        matmul_flops=cost.matmul_flops,
        hbm_bytes=cost.hbm_bytes,
        mfu=cost.matmul_flops * per_s / peak,
        achieved_flops_per_s=cost.matmul_flops * per_s,
        attainable_flops_per_s=min(peak, intensity * chip.hbm_bytes_per_s),
        peak_flops_per_s=peak,
        achieved_bytes_per_s=cost.hbm_bytes * per_s,
        attainable_bytes_per_s=chip.hbm_bytes_per_s,
        bound=cost.bound,
        shares={k: v * per_s for k, v in cost.by_bound.items()},
        programs=programs,
        kernels=cost.kernels,
        unmodelled_share=cost.unmodelled_s * per_s,
        unmodelled=tuple(sorted(cost.unmodelled.items(), key=lambda item: (-item[1], item[0]))),
        memory=memory,
        dearest=steps.dear.dearest(time_s),
        hints=tuple(sorted(cost.hints.items(), key=lambda item: (-item[1], item[0]))),
        topology=network.name if network else "",
        devices=network.devices if network else 1,
        exposed_s=steps.exposed_s,
        network_s=steps.network_s,
    )
