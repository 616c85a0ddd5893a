"""The time of one kernel of optimized HLO: the compiler's cycles where they can be trusted.

That is for kernels with a matmul or convolution. The compiler counts elementwise work on 16-bit
types as if they had 32 bits, and copies about twice too slow (an 8 GB copy on TPU7x takes 1394 GB/s
by its cycles, 3210 GB/s measured), so other kernels are priced by this package's own rules, with
the bytes that the compiled program moves. Those bytes are also the least that a matmul takes: its
cycles leave out what else a fusion reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.costs.registry import Kind, rule_for
from torchtpu.perf_model.fitted import calibration_of
from torchtpu.perf_model.fusion import Kernel, Schedule
from torchtpu.perf_model.hlo.idle import idle_s
from torchtpu.perf_model.hlo.ops import op_of
from torchtpu.perf_model.hlo.reader import Computation, Instruction, Module
from torchtpu.perf_model.kernel_cost import KernelCost, kernel_cost
from torchtpu.perf_model.program import Graph, Op, TensorType

LIBTPU, MODEL = "libtpu", "model"
_MATMULS = frozenset({"convolution", "dot"})
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A kernel's cost and where its time comes from: LIBTPU or MODEL."""

    cost: KernelCost
    origin: str


def price(module: Module, instruction: Instruction, scope: Computation, chip: Chip) -> Priced:
    """Price one kernel: a fusion or a single instruction of a computation on one device."""
    body = _Body(module, instruction, scope)
    own = body.cost(chip)
    cycles = instruction.cycles
    if cycles is None or not body.has_matmul:
        return Priced(cost=own, origin=MODEL)
    time_s = _seconds(cycles, own, chip)
    traffic_s = own.hbm_bytes / (calibration_of(chip).hbm_efficiency * chip.hbm_bytes_per_s)
    if traffic_s > time_s:
        return Priced(cost=_taking(own, traffic_s, "hbm"), origin=MODEL)
    busy = {k: v for k, v in own.by_bound.items() if k != "launch"}
    bound = max(busy, key=lambda k: busy[k], default="mxu")
    return Priced(cost=_taking(own, time_s, bound), origin=LIBTPU)


def _seconds(cycles: int, own: KernelCost, chip: Chip) -> float:
    """The time of a kernel's cycles. What the compiler gives one with operands in HBM for doing
    nothing is replaced by what such a kernel takes by the published measurements.
    """
    time_s = cycles / chip.clock_hz
    if not own.hbm_bytes:
        return time_s
    kernel_s = calibration_of(chip).kernel_s
    return max(kernel_s, time_s - idle_s(chip) + kernel_s)


def _taking(cost: KernelCost, time_s: float, bound: str) -> KernelCost:
    return replace(cost, time_s=time_s, by_bound={bound: time_s}, unmodelled_s=0.0, unmodelled={})


class _Body:
    """A kernel as a graph of this package: its ops, and the bytes that enter and leave it."""

    def __init__(self, module: Module, instruction: Instruction, scope: Computation) -> None:
        self._module = module
        self._types: list[TensorType] = []
        self._ops: list[Op] = []
        self._values: dict[tuple[str, str], tuple[int, ...]] = {}
        self.has_matmul = False
        self._reads: list[tuple[int, int]] = []
        operands = [scope.by_name[name] for name in instruction.operands]
        inner = self._computation(instruction)
        given = []
        for position, operand in enumerate(operands):
            values = tuple(self._new(a.type) for a in operand.shape.arrays)
            given.append(values)
            read = operand.shape.hbm_bytes
            if inner is not None and len(operand.shape.arrays) == 1:
                read = min(read, _read_bytes(module, inner, position, read))
            self._reads.append((values[0] if values else 0, read))
        if inner is not None:
            results = self._inline(inner, given)
            self._written = sum(_update_bytes(root, inner) for root in _roots(inner))
        else:
            results = self._single(instruction, dict(enumerate(given)))
            self._written = _update_bytes(instruction, scope)
        self._results = results

    def _computation(self, instruction: Instruction) -> Computation | None:
        if instruction.opcode != "fusion":
            return None
        return self._module.computations[instruction.called[0]]

    def _new(self, type_: TensorType) -> int:
        self._types.append(type_)
        return len(self._types) - 1

    def _inline(self, computation: Computation, given: list[tuple[int, ...]]) -> tuple[int, ...]:
        """Add the ops of a fused computation, and of those fused into it."""
        values: dict[str, tuple[int, ...]] = {}
        for instruction in computation.instructions:
            operands = [values[name] for name in instruction.operands]
            if instruction.opcode == "parameter":
                found = given[int(instruction.literal)]
            elif instruction.opcode == "tuple":
                found = tuple(v for part in operands for v in part)
            elif instruction.opcode == "get-tuple-element":
                index = int(instruction.attributes["index"])
                found = operands[0][index : index + 1]
            elif instruction.opcode == "fusion":
                found = self._inline(self._module.computations[instruction.called[0]], operands)
            else:
                found = self._single(instruction, dict(enumerate(operands)))
            values[instruction.name] = found
        return values[computation.root.name]

    def _single(
        self, instruction: Instruction, operands: Mapping[int, tuple[int, ...]]
    ) -> tuple[int, ...]:
        results = tuple(self._new(a.type) for a in instruction.shape.arrays)
        self.has_matmul |= instruction.opcode in _MATMULS
        taken = tuple(v for values in operands.values() for v in values)
        self._ops.append(op_of(self._module, instruction, taken, results))
        return results

    def cost(self, chip: Chip) -> KernelCost:
        """What this package's own rules say of the kernel."""
        types, ops = tuple(self._types), tuple(self._ops)
        graph = Graph(types=types, inputs=(), outputs=(), ops=ops)
        hero = _hero(ops)
        writes = ((self._results[0], self._written),) if self._results else ()
        kernel = Kernel(
            ops=tuple(range(len(ops))),
            hero=hero,
            kind=rule_for(ops[hero]).kind if ops else Kind.LOOP,
            reads=tuple(self._reads),
            writes=writes,
        )
        schedule = Schedule(graph=graph, kernels=(kernel,), source=tuple(range(len(types))))
        return kernel_cost(schedule, kernel, chip)


def _hero(ops: tuple[Op, ...]) -> int:
    """The op that gives a kernel its kind: a matmul, a reduction, or the last one."""
    for kind in (Kind.MATMUL, Kind.REDUCE):
        for number, op in enumerate(ops):
            if rule_for(op).kind is kind:
                return number
    return max(0, len(ops) - 1)


def _roots(computation: Computation) -> Iterator[Instruction]:
    """Yield what a fused computation returns, array by array."""
    root = computation.root
    if root.opcode == "tuple":
        yield from (computation.by_name[name] for name in root.operands)
    else:
        yield root


def _update_bytes(instruction: Instruction, scope: Computation) -> int:
    """Bytes that an instruction writes to HBM: of an update in place only the new part."""
    written = instruction.shape.hbm_bytes
    while instruction.opcode in ("bitcast", "copy", "convert", "get-tuple-element"):
        below = scope.by_name.get(instruction.operands[0]) if instruction.operands else None
        if below is None:
            break
        instruction = below
    if instruction.opcode == "dynamic-update-slice" and len(instruction.operands) > 1:
        update = scope.by_name[instruction.operands[1]]
        return min(written, update.shape.padded_bytes)
    return written


def _read_bytes(module: Module, computation: Computation, position: int, whole: int) -> int:
    """Bytes of a parameter that a fused computation reads: a slice of it, or all."""
    parameters = computation.parameters
    if position >= len(parameters):
        return whole
    name = parameters[position].name
    total = 0
    for user in computation.instructions:
        if name not in user.operands:
            continue
        if user.opcode in _SLICES and user.operands[0] == name:
            total += user.shape.padded_bytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
            continue  # written in place
        elif user.opcode == "fusion":
            inner = module.computations[user.called[0]]
            for at, operand in enumerate(user.operands):
                if operand == name:
                    total += _read_bytes(module, inner, at, whole)
        else:
            return whole
    return total
