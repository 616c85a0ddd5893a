"""The time of a scheduled HLO module: kernels in order, with copies and collectives beside them.

Three resources: the core runs one kernel at a time; HBM moves what kernels and asynchronous copies
read and write; the network runs collectives. An asynchronous copy gets the bandwidth that kernels
leave; whoever waits for its end waits for what is left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.fitted import calibration_of
from torchtpu.perf_model.hlo.cost import MODEL, Priced, price
from torchtpu.perf_model.hlo.reader import Computation, Instruction, Module, is_collective
from torchtpu.perf_model.hlo.shape import HBM
from torchtpu.perf_model.kernel_cost import KernelCost

_FREE = frozenset(
    {
        "add-dependency",
        "after-all",
        "bitcast",
        "constant",
        "domain",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    }
)
_CONTROL = frozenset({"call", "conditional", "while"})
_ALLOCATE = "AllocateBuffer"  # a custom call that reserves memory
CollectiveTime = Callable[[Instruction], KernelCost]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one instruction costs in all its executions, and where its time comes from.

    time_s is the time on the critical path: of an asynchronous operation what somebody waits for.
    """

    name: str
    op_name: str
    opcode: str
    count: int
    cost: KernelCost
    origin: str


@dataclass(frozen=True, kw_only=True)
class Flight:
    """An asynchronous operation: where it starts and ends, and what it takes by itself."""

    name: str
    start: int  # position in the schedule
    done: int
    time_s: float
    waited_s: float

    @property
    def distance(self) -> int:
        """Instructions between start and end."""
        return self.done - self.start - 1


@dataclass(slots=True)
class Timeline:
    """The rows of a module on one device and its asynchronous operations."""

    rows: list[Row] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)

    @property
    def time_s(self) -> float:
        """Seconds from the first kernel to the last, without the program's launch."""
        return sum(row.cost.time_s for row in self.rows)


def unpriced(instruction: Instruction) -> KernelCost:
    """A collective that nobody prices: unmodelled, not free of notice."""
    return KernelCost(kernels=1, unmodelled={f"no time for {instruction.opcode}": 1})


def timeline(module: Module, chip: Chip, collective: CollectiveTime = unpriced) -> Timeline:
    """Run the schedule of a module. `collective` prices a collective by its (start) instruction."""
    found = Timeline()
    _Run(module, chip, collective, found, 1).run(module.entry)
    return found


class _Run:
    """One computation being run `times` times, with operations in flight."""

    def __init__(
        self, module: Module, chip: Chip, collective: CollectiveTime, into: Timeline, times: int
    ) -> None:
        self._module, self._chip, self._collective = module, chip, collective
        self._into, self._times = into, times
        self._hbm_queue: dict[str, float] = {}  # copies in flight: seconds of HBM still to come
        self._network_queue: dict[str, float] = {}
        self._started: dict[str, tuple[int, float]] = {}
        self._dones: dict[str, Instruction] = {}  # by the name of the start

    def run(self, computation: Computation) -> None:
        """Go through the schedule."""
        ends = [i for i in computation.instructions if i.opcode.endswith("-done")]
        self._dones = {start.name: i for i in ends if (start := _origin(i, computation))}
        for position, instruction in enumerate(computation.instructions):
            opcode = instruction.opcode
            if opcode in _FREE or instruction.target == _ALLOCATE:
                continue
            if opcode in _CONTROL:
                self._control(instruction)
            elif opcode.endswith("-start") or opcode.endswith("-update"):
                self._start(position, instruction, computation)
            elif opcode.endswith("-done"):
                self._done(position, instruction, computation)
            elif inside := self._collectives(instruction):
                for part in inside:
                    self._add(part, self._collective(part), MODEL)
            elif not _on_numbers(instruction, computation):
                self._kernel(price(self._module, instruction, computation, self._chip), instruction)

    def _control(self, instruction: Instruction) -> None:
        if instruction.opcode == "while":
            self._loop(instruction)
        elif instruction.opcode == "conditional":
            self._branches(instruction)
        else:
            self._inner(instruction.called[0], self._times)

    def _kernel(self, priced: Priced, instruction: Instruction) -> None:
        own_hbm_s = priced.cost.hbm_bytes / self._bandwidth
        _advance(self._hbm_queue, max(0.0, priced.cost.time_s - own_hbm_s))
        _advance(self._network_queue, priced.cost.time_s)
        self._add(instruction, priced.cost, priced.origin)

    @property
    def _bandwidth(self) -> float:
        return calibration_of(self._chip).hbm_efficiency * self._chip.hbm_bytes_per_s

    def _add(self, instruction: Instruction, cost: KernelCost, origin: str) -> None:
        self._into.rows.append(
            Row(
                name=instruction.name,
                op_name=instruction.op_name,
                opcode=instruction.opcode,
                count=self._times,
                cost=_times(cost, self._times),
                origin=origin,
            )
        )

    def _start(self, position: int, instruction: Instruction, scope: Computation) -> None:
        if instruction.opcode.endswith("-update"):
            return
        if inside := self._collectives(instruction):
            seconds = sum(self._collective(part).time_s for part in inside)
            self._network_queue[instruction.name] = seconds
        else:
            done = self._dones.get(instruction.name, instruction)
            seconds = self._copy_bytes(done, instruction, scope) / self._bandwidth
            self._hbm_queue[instruction.name] = seconds
        self._started[instruction.name] = position, seconds

    def _collectives(self, instruction: Instruction) -> list[Instruction]:
        """The collective that an instruction is, or those in what it calls."""
        if is_collective(instruction):
            return [instruction]
        called = [self._module.computations[name] for name in instruction.called]
        return [i for c in called for i in self._module.walk(c) if is_collective(i)]

    def _copy_bytes(self, done: Instruction, start: Instruction, scope: Computation) -> int:
        """HBM bytes of an asynchronous copy or slice: what it reads there, and what it writes."""
        source = scope.by_name[start.operands[0]].shape if start.operands else done.shape
        in_hbm = sum(a.space == HBM for a in (*source.arrays[:1], *done.shape.arrays[:1]))
        return in_hbm * done.shape.padded_bytes

    def _done(self, position: int, instruction: Instruction, scope: Computation) -> None:
        start = _origin(instruction, scope)
        if start is None or start.name not in self._started:
            return
        began, seconds = self._started.pop(start.name)
        is_network = start.name in self._network_queue
        queue = self._network_queue if is_network else self._hbm_queue
        waited = _finish(queue, start.name)
        other = self._hbm_queue if is_network else self._network_queue
        _advance(other, waited)
        self._into.flights.append(
            Flight(name=start.name, start=began, done=position, time_s=seconds, waited_s=waited)
        )
        if is_network:
            cost = self._collective(self._collectives(start)[0])
            bound = {"network": waited}
        else:
            cost = KernelCost(hbm_bytes=self._copy_bytes(instruction, start, scope))
            bound = {"hbm": waited}
        self._add(start, _replaced(cost, waited, bound), MODEL)

    def _loop(self, instruction: Instruction) -> None:
        trips = self._module.trip_count(instruction)
        names = instruction.called
        for name in names:
            self._inner(name, self._times * (1 if trips is None else trips))
        if trips is None:
            reason = "loop with an unknown number of iterations, counted once"
            self._add(instruction, KernelCost(unmodelled={reason: 1}), MODEL)

    def _branches(self, instruction: Instruction) -> None:
        """The dearest branch is what a conditional costs."""
        runs = [self._alone(name) for name in instruction.called]
        dearest = max(runs, key=lambda t: t.time_s, default=Timeline())
        self._into.rows += dearest.rows

    def _alone(self, name: str) -> Timeline:
        found = Timeline()
        inner = _Run(self._module, self._chip, self._collective, found, self._times)
        inner.run(self._module.computations[name])
        return found

    def _inner(self, name: str, times: int) -> None:
        inner = _Run(self._module, self._chip, self._collective, self._into, times)
        inner.run(self._module.computations[name])


def _on_numbers(instruction: Instruction, scope: Computation) -> bool:
    """Whether a kernel is the work of the scalar unit, beside the others: a loop's counter."""
    shapes = [instruction.shape, *(scope.by_name[name].shape for name in instruction.operands)]
    return all(array.type.elements <= 1 for shape in shapes for array in shape.arrays)


def _advance(queue: dict[str, float], seconds: float) -> None:
    """Let a resource work on what is in flight, first come first served."""
    for name in list(queue):
        used = min(seconds, queue[name])
        queue[name] -= used
        seconds -= used
        if seconds <= 0:
            return


def _finish(queue: dict[str, float], name: str) -> float:
    """Wait for an operation, and for what was started before it; return the seconds."""
    waited = 0.0
    for other in list(queue):
        waited += queue.pop(other) if other == name else queue[other]
        if other == name:
            return waited
        queue[other] = 0.0
    return waited


def _origin(instruction: Instruction, scope: Computation) -> Instruction | None:
    """The start of an asynchronous operation that an instruction ends."""
    found: Instruction | None = instruction
    while found is not None and not found.opcode.endswith("-start"):
        found = scope.by_name.get(found.operands[0]) if found.operands else None
    return found


def _replaced(cost: KernelCost, time_s: float, bound: Mapping[str, float]) -> KernelCost:
    return KernelCost(
        time_s=time_s,
        hbm_bytes=cost.hbm_bytes,
        by_bound=bound,
        kernels=1,
        unmodelled=cost.unmodelled,
    )


def _times(cost: KernelCost, times: int) -> KernelCost:
    """The cost of `times` executions."""
    if times == 1:
        return cost
    return KernelCost(
        time_s=cost.time_s * times,
        matmul_flops=cost.matmul_flops * times,
        hbm_bytes=cost.hbm_bytes * times,
        by_bound={k: v * times for k, v in cost.by_bound.items()},
        kernels=cost.kernels * times,
        unmodelled_s=cost.unmodelled_s * times,
        unmodelled={k: n * times for k, n in cost.unmodelled.items()},
    )
