"""The time of a kernel: the slowest of matrix unit, vector units and HBM, plus a fixed cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.constants import constants
from torchtpu.perf_model.costs.registry import Cost, rule_for
from torchtpu.perf_model.fitted import Calibration, calibration_of
from torchtpu.perf_model.fusion import Kernel, Schedule, fuse
from torchtpu.perf_model.program import Graph, Op

BOUNDS = ("mxu", "vpu", "hbm", "network", "launch")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCost:
    """What a kernel (or several) costs.

    time_s is split over what bounds it in `by_bound` (keys: BOUNDS); unmodelled_s is the part of
    time_s that belongs to kernels holding an op without a rule, of which only the memory traffic is
    counted; `unmodelled` counts them. `hints` counts what the user could do about a cost.
    """

    time_s: float = 0.0
    matmul_flops: float = 0.0
    hbm_bytes: float = 0.0
    by_bound: Mapping[str, float] = field(default_factory=dict)
    kernels: int = 0
    unmodelled_s: float = 0.0
    unmodelled: Mapping[str, int] = field(default_factory=dict)
    hints: Mapping[str, int] = field(default_factory=dict)

    @property
    def bound(self) -> str:
        """What takes most of the time."""
        return max(self.by_bound, key=lambda k: self.by_bound[k], default="launch")


class CostSum:
    """Adds kernel costs up."""

    def __init__(self) -> None:
        self.time_s = self.matmul_flops = self.hbm_bytes = self.unmodelled_s = 0.0
        self.kernels = 0
        self.by_bound = dict.fromkeys(BOUNDS, 0.0)
        self.unmodelled: dict[str, int] = {}
        self.hints: dict[str, int] = {}

    def add(self, cost: KernelCost, times: int = 1) -> None:
        """Add a cost `times` times."""
        self.time_s += cost.time_s * times
        self.matmul_flops += cost.matmul_flops * times
        self.hbm_bytes += cost.hbm_bytes * times
        self.unmodelled_s += cost.unmodelled_s * times
        self.kernels += cost.kernels * times
        for bound, seconds in cost.by_bound.items():
            self.by_bound[bound] += seconds * times
        for mine, theirs in ((self.unmodelled, cost.unmodelled), (self.hints, cost.hints)):
            for reason, count in theirs.items():
                mine[reason] = mine.get(reason, 0) + count * times

    def result(self) -> KernelCost:
        """The sum."""
        return KernelCost(
            time_s=self.time_s,
            matmul_flops=self.matmul_flops,
            hbm_bytes=self.hbm_bytes,
            by_bound=dict(self.by_bound),
            kernels=self.kernels,
            unmodelled_s=self.unmodelled_s,
            unmodelled=dict(self.unmodelled),
            hints=dict(self.hints),
        )


@dataclass(slots=True)
class _Work:
    """Summed work of the ops of one kernel."""

    matmul_flops: float = 0.0
    mxu_cycles: float = 0.0
    valu_ops: float = 0.0
    eup_ops: float = 0.0
    xlu_ops: float = 0.0
    scalar_cycles: float = 0.0
    serial_cycles: float = 0.0
    hbm_bytes: float = 0.0
    unmodelled: dict[str, int] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)

    def add(self, cost: Cost) -> None:
        self.matmul_flops += cost.matmul_flops
        self.mxu_cycles += cost.mxu_cycles
        self.valu_ops += cost.valu_ops
        self.eup_ops += cost.eup_ops
        self.xlu_ops += cost.xlu_ops
        self.scalar_cycles += cost.scalar_cycles
        self.serial_cycles += cost.serial_cycles
        self.hbm_bytes += cost.hbm_bytes
        for reasons, reason in ((self.unmodelled, cost.unmodelled), (self.hints, cost.hint)):
            if reason:
                reasons[reason] = reasons.get(reason, 0) + 1


def _work(schedule: Schedule, kernel: Kernel, chip: Chip) -> _Work:
    work, graph = _Work(), schedule.graph
    for index in kernel.ops:
        op = graph.ops[index]
        work.add(rule_for(op).cost(op, graph, chip))
    work.hbm_bytes = max(work.hbm_bytes, kernel.hbm_bytes)
    work.serial_cycles += _float16_cycles(schedule, kernel, chip)
    return work


def _float16_cycles(schedule: Schedule, kernel: Kernel, chip: Chip) -> float:
    """Cycles that take float16 operands to float32 and results back: no TPU computes in float16."""
    types = schedule.graph.types
    crossing = (value for value, _ in (*kernel.reads, *kernel.writes))
    elements = sum(types[value].elements for value in crossing if types[value].dtype == "f16")
    if not elements:
        return 0.0
    return elements * calibration_of(chip).f16_convert_ops / chip.valu_ops_per_cycle


def kernel_cost(schedule: Schedule, kernel: Kernel, chip: Chip) -> KernelCost:
    """Cost of one kernel on one device.

    time = max(MXU + fill, VPU, scalar, HBM) + serial + fixed, with MXU = cycles / clock /
    efficiency, HBM = bytes / (efficiency x bandwidth), VPU = the busiest of ALU, transcendental and
    cross-lane units, fill = the time of the operand bytes that a matmul has to load before, and
    store after, it computes, and serial what nothing overlaps with. Efficiencies, fill and fixed
    seconds are the fitted constants of the chip's generation.
    """
    if kernel.ops and schedule.graph.ops[kernel.hero].bodies:
        return _control_flow(schedule.graph.ops[kernel.hero], chip)
    work, fitted = _work(schedule, kernel, chip), calibration_of(chip)
    busy = _busy(work, fitted, chip)
    bound = max(busy, key=lambda k: busy[k])
    by_bound = {bound: busy[bound], "launch": fitted.kernel_s}
    if work.serial_cycles:
        by_bound["vpu"] = by_bound.get("vpu", 0.0) + work.serial_cycles / chip.clock_hz
    time_s = sum(by_bound.values())
    return KernelCost(
        time_s=time_s,
        matmul_flops=work.matmul_flops,
        hbm_bytes=work.hbm_bytes,
        by_bound=by_bound,
        kernels=1,
        unmodelled_s=time_s if work.unmodelled else 0.0,
        unmodelled=work.unmodelled,
        hints=work.hints,
    )


def _busy(work: _Work, fitted: Calibration, chip: Chip) -> dict[str, float]:
    """Seconds that each unit needs by itself."""
    bytes_per_s = fitted.hbm_efficiency * chip.hbm_bytes_per_s
    hbm_s = work.hbm_bytes / bytes_per_s
    mxu_s = work.mxu_cycles / (chip.clock_hz * fitted.mxu_efficiency)
    if mxu_s:
        mxu_s += min(hbm_s, min(fitted.fill_bytes, chip.vmem_bytes / 2) / bytes_per_s)
    vector_cycles = max(
        work.valu_ops / chip.valu_ops_per_cycle,
        work.eup_ops / chip.eup_ops_per_cycle,
        work.xlu_ops / chip.xlu_ops_per_cycle,
    )
    cycles = max(vector_cycles / constants().vector_efficiency, work.scalar_cycles)
    return {"mxu": mxu_s, "vpu": cycles / chip.clock_hz, "hbm": hbm_s}


def _control_flow(op: Op, chip: Chip) -> KernelCost:
    """A loop costs its bodies times its trips, a branch its dearest body."""
    if op.opcode != "while":
        return max((program_cost(body, chip) for body in op.bodies), key=lambda c: c.time_s)
    total = CostSum()
    for body in op.bodies:
        total.add(_without_scalars(body, chip), op.trip_count if op.trip_count is not None else 1)
    if op.trip_count is None:
        total.unmodelled_s = total.time_s
        total.unmodelled["loop with an unknown number of iterations, counted once"] = 1
    return total.result()


def _without_scalars(body: Graph, chip: Chip) -> KernelCost:
    """Cost of a loop body; kernels on scalars only (the counter) run beside the others."""
    schedule, total = fuse(body), CostSum()
    for kernel in schedule.kernels:
        if any(body.types[value].shape for value, _ in (*kernel.reads, *kernel.writes)):
            total.add(kernel_cost(schedule, kernel, chip))
    return total.result()


def program_cost(graph: Graph, chip: Chip) -> KernelCost:
    """Cost of a program's kernels, one after the other, without the program's own launch."""
    schedule, total = fuse(graph), CostSum()
    for kernel in schedule.kernels:
        total.add(kernel_cost(schedule, kernel, chip))
    return total.result()
