"""HBM over a schedule: what is alive when, the peak, and what makes it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchtpu.perf_model.costs.registry import Kind
from torchtpu.perf_model.fusion import Schedule, fuse
from torchtpu.perf_model.order import freeing
from torchtpu.perf_model.program import Graph
from torchtpu.perf_model.tiling import padded_bytes
from torchtpu.perf_model.trace import StepTrace, Stitched, buffer_kinds


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """HBM of one device during a step.

    peak_bytes: largest sum of live buffers. usable_bytes: what the compiler lets a program use.
    by_kind: the bytes of each kind at the moment of the peak, largest first; they sum to the peak
    ("reused_in_place" is negative: memory that the running kernel's outputs take over from its
    inputs).
    """

    peak_bytes: int
    usable_bytes: int
    by_kind: tuple[tuple[str, int], ...]

    @property
    def fits(self) -> bool:
        """Whether the peak is within the usable HBM."""
        return self.peak_bytes <= self.usable_bytes

    @property
    def headroom_bytes(self) -> int:
        """Usable bytes left at the peak; negative by as much as is missing."""
        return self.usable_bytes - self.peak_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One moment of a schedule: values that come alive, bytes of scratch, values that die
    afterwards.
    """

    born: tuple[tuple[int, int], ...]
    scratch_bytes: int
    dead: tuple[int, ...]


class Account:
    """Live values by id, each with size and kind; remembers the peak."""

    def __init__(self) -> None:
        self.live: dict[int, tuple[int, str]] = {}
        self.current = 0
        self.peak = 0
        self.at_peak: dict[str, int] = {}
        self._by_kind: dict[str, int] = {}

    def allocate(self, value: int, size_bytes: int, kind: str) -> None:
        """A value comes alive."""
        if value in self.live:
            return
        self.live[value] = (size_bytes, kind)
        self.current += size_bytes
        self._by_kind[kind] = self._by_kind.get(kind, 0) + size_bytes

    def free(self, value: int) -> None:
        """A value dies; unknown values are ignored."""
        size_bytes, kind = self.live.pop(value, (0, ""))
        if kind:
            self.current -= size_bytes
            self._by_kind[kind] -= size_bytes

    def mark(self, scratch_bytes: int = 0) -> None:
        """Compare the present sum, with scratch memory on top, to the peak."""
        if self.current + scratch_bytes > self.peak:
            self.peak = self.current + scratch_bytes
            self.at_peak = {k: v for k, v in self._by_kind.items() if v}
            if scratch_bytes:
                self.at_peak["scratch" if scratch_bytes > 0 else "reused_in_place"] = scratch_bytes

    def estimate(self, usable_bytes: int) -> MemoryEstimate:
        """The result."""
        ordered = sorted(self.at_peak.items(), key=lambda item: -item[1])
        return MemoryEstimate(
            peak_bytes=self.peak, usable_bytes=usable_bytes, by_kind=tuple(ordered)
        )


def _scratch(schedule: Schedule, ops: Sequence[int]) -> int:
    """Peak of the bodies of a kernel's loops and branches, beyond what enters and leaves them."""
    bodies = [body for index in ops for body in schedule.graph.ops[index].bodies]
    return max((temporary_bytes(fuse(body)) for body in bodies), default=0)


def events(schedule: Schedule) -> list[Event]:
    """What each kernel allocates and frees; inputs that are not donated and outputs never die."""
    graph, source = schedule.graph, schedule.source
    last: dict[int, int] = {}
    for position, kernel in enumerate(schedule.kernels):
        for value, _ in kernel.reads:
            last[value] = position
        for value, _ in (*kernel.writes, *kernel.in_place):
            last.setdefault(value, position)
        for _, taken in kernel.in_place:
            last[taken] = position
    kept = {source[v] for v in graph.outputs} | (set(graph.inputs) - graph.donated)
    dying: dict[int, list[int]] = {}
    for value, position in last.items():
        if value not in kept:
            dying.setdefault(position, []).append(value)
    return [
        _event(schedule, position, dying.get(position, []))
        for position in range(len(schedule.kernels))
    ]


def _event(schedule: Schedule, position: int, dead: list[int]) -> Event:
    kernel = schedule.kernels[position]
    types = schedule.graph.types
    reusable = {v for v in dead if v not in {w for w, _ in kernel.writes}}
    takes_over = dict(kernel.in_place)
    by_size: dict[int, list[int]] = {}
    for value in sorted(reusable - set(takes_over.values())):
        by_size.setdefault(padded_bytes(types[value]), []).append(value)
    born: list[tuple[int, int]] = []
    freed_early: list[int] = list(takes_over.values())
    for value, _ in kernel.writes:
        size = padded_bytes(types[value])
        if value not in takes_over and by_size.get(size) and kernel.kind is Kind.LOOP:
            freed_early.append(by_size[size].pop())
        born.append((value, size))
    # A negative size of scratch is the memory that outputs take over from dying inputs.
    shared = sum(padded_bytes(types[v]) for v in freed_early)
    return Event(
        born=tuple(born), scratch_bytes=_scratch(schedule, kernel.ops) - shared, dead=tuple(dead)
    )


def _constants(schedule: Schedule) -> int:
    """Bytes of constants that are data, not one repeated value."""
    graph = schedule.graph
    return sum(
        padded_bytes(graph.types[op.results[0]])
        for op in graph.ops
        if op.opcode == "constant" and not op.attrs.get("splat", True)
    )


def replay(schedule: Schedule, account: Account, kind_of: Mapping[int, str]) -> None:
    """Run the schedule's allocations on an account that already holds the inputs."""
    constant_bytes = _constants(schedule)
    account.mark()
    for event in events(schedule):
        for value, size in event.born:
            account.allocate(value, size, kind_of.get(value, "activation"))
        account.mark(event.scratch_bytes + constant_bytes)
        for value in event.dead:
            account.free(value)


def temporary_bytes(schedule: Schedule) -> int:
    """Peak HBM of a program beyond its inputs and outputs."""
    account = Account()
    graph, source = schedule.graph, schedule.source
    for value in graph.inputs:
        account.allocate(value, 0, "input")
    outputs = {source[v] for v in graph.outputs}
    peak = 0
    for event in events(schedule):
        for value, size in event.born:
            account.allocate(value, 0 if value in outputs else size, "temporary")
        peak = max(peak, account.current + max(0, event.scratch_bytes))
        for value in event.dead:
            account.free(value)
    return peak


def program_memory(schedule: Schedule, usable_bytes: int) -> MemoryEstimate:
    """HBM of one program by itself: inputs, outputs, temporaries, less what is donated."""
    outputs = {schedule.source[v]: "output" for v in schedule.graph.outputs}

    def account() -> Account:
        made = Account()
        for value in schedule.graph.inputs:
            made.allocate(value, padded_bytes(schedule.graph.types[value]), "input")
        return made

    return _least(schedule, account, outputs, usable_bytes)


def _least(
    schedule: Schedule,
    start: Callable[[], Account],
    kind_of: Mapping[int, str],
    usable_bytes: int,
) -> MemoryEstimate:
    """The smaller peak of the program's order and of one that frees early, as the compiler does."""
    estimates = []
    lean = fuse(schedule.graph, recompute=True)
    for order in (schedule, lean, freeing(lean)):
        account = start()
        replay(order, account, kind_of)
        estimates.append(account.estimate(usable_bytes))
    return min(estimates, key=lambda e: e.peak_bytes)


def fused_memory(
    trace: StepTrace, stitched: Stitched, schedule: Schedule, usable_bytes: int
) -> MemoryEstimate:
    """HBM of a step that runs as one program. Buffers live before but never read stay alive."""
    kind_of: dict[int, str] = {}
    for buffer, kind in buffer_kinds(trace).items():
        if buffer in stitched.value_of:
            kind_of[schedule.source[stitched.value_of[buffer]]] = kind

    def account() -> Account:
        made = Account()
        for buffer, info in trace.live_before.items():
            value = stitched.value_of.get(buffer)
            made.allocate(value if value is not None else -1 - buffer, info.size_bytes, info.kind)
        return made

    return _least(schedule, account, kind_of, usable_bytes)


def strict_memory(
    trace: StepTrace, temporaries: Mapping[Graph, int], usable_bytes: int
) -> MemoryEstimate:
    """HBM of a step that runs call by call. A buffer dies after its last use unless it is alive
    after the step.
    """
    account = Account()
    last: dict[int, int] = {}
    for position, call in enumerate(trace.calls):
        last.update(dict.fromkeys((*call.inputs, *call.outputs), position))
    dying: dict[int, list[int]] = {}
    for buffer, position in last.items():
        if buffer not in trace.live_after:
            dying.setdefault(position, []).append(buffer)
    for buffer, info in trace.live_before.items():
        account.allocate(buffer, info.size_bytes, info.kind)
    account.mark()
    kinds = buffer_kinds(trace)
    for position, call in enumerate(trace.calls):
        shared = 0
        for output, reused in call.reuse:
            if (
                last.get(call.inputs[reused]) == position
                and call.inputs[reused] not in trace.live_after
            ):
                shared += padded_bytes(call.graph.types[call.graph.outputs[output]])
        for buffer, value in zip(call.outputs, call.graph.outputs, strict=True):
            size = padded_bytes(call.graph.types[value])
            account.allocate(buffer, size, kinds.get(buffer, "activation"))
        account.mark(temporaries[call.graph] - shared)
        for buffer in dying.get(position, ()):
            account.free(buffer)
    return account.estimate(usable_bytes)
