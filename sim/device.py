"""One simulated device: a clock and the HBM of a chip."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.constants import constants
from torchtpu.perf_model.fusion import fuse
from torchtpu.perf_model.program import Graph
from torchtpu.perf_model.quantities import size
from torchtpu.perf_model.roofline import program, program_time_s
from torchtpu.sim.clock import Clock, to_ps, to_s
from torchtpu.sim.context import context
from torchtpu.sim.host import record_s
from torchtpu.sim.memory import HbmAccount
from torchtpu.sim.residents import Residents

_LARGEST = 4  # temporaries that an error lists


class SimDevice:
    """A device of the given chip. All times are simulated; nothing depends on the machine it runs
    on.
    """

    def __init__(self, chip: Chip, *, enforce_capacity: bool = True) -> None:
        self.chip = chip.require_complete()
        self.clock = Clock()
        self.hbm = HbmAccount(
            capacity_bytes=chip.hbm_usable_bytes,
            chip=chip.name,
            enforce=enforce_capacity,
            on_full=context.full,
        )
        self.arrays = Residents(self.hbm)
        self.launches = 0
        self._needs: WeakKeyDictionary[Graph, int] = WeakKeyDictionary()

    def launch(self, duration_s: float, *, host_s: float | None = None) -> int:
        """Dispatch one program from the host and enqueue it; the picosecond at which it ends.

        host_s: host time to dispatch it, by default the constant host_dispatch_s.
        """
        known = constants()
        self.clock.host_work(to_ps(known.host_dispatch_s if host_s is None else host_s))
        self.launches += 1
        return self.clock.enqueue(to_ps(duration_s + known.launch_s))

    def launch_program(self, graph: Graph) -> int:
        """Launch a program that takes as long as the cost model says."""
        return self.launch(program_time_s(graph, self.chip))

    def record(self, ops: int) -> None:
        """The host records so many ops for a program that it will dispatch."""
        self.clock.host_work(ops * to_ps(record_s()))

    def admit(self, graph: Graph, reused_bytes: int = 0) -> None:
        """Take note of the HBM that a program needs beside its inputs while it runs: temporaries,
        and outputs but for the reused_bytes of donated inputs. Raises torchtpu.sim.memory.OutOfHBM.
        """
        need = self._needs.get(graph)
        if need is None:
            temporary_bytes = program(graph, self.chip).temporary_bytes
            need = self._needs[graph] = _output_bytes(graph) + temporary_bytes
        self.hbm.require(need - reused_bytes, lambda: self._explained(graph, reused_bytes))

    def _explained(self, graph: Graph, reused_bytes: int) -> Sequence[str]:
        temporary_bytes = program(graph, self.chip).temporary_bytes
        head = f"The program takes {size(_output_bytes(graph) - reused_bytes)} for outputs"
        if not temporary_bytes:
            return [head]
        return [f"{head} and {size(temporary_bytes)} for temporaries:", *_largest(graph)]

    def allocate(self, size_bytes: int) -> None:
        """Take HBM. Raises torchtpu.sim.memory.OutOfHBM."""
        self.hbm.allocate(size_bytes)

    def free(self, size_bytes: int) -> None:
        """Give HBM back."""
        self.hbm.free(size_bytes)

    def record_event(self) -> int:
        """The picosecond at which everything enqueued so far is done."""
        return self.clock.record()

    def synchronize(self) -> float:
        """Wait for the queue; elapsed seconds of host time."""
        return to_s(self.clock.synchronize())

    @property
    def elapsed_s(self) -> float:
        """Seconds from the start to the end of what is enqueued."""
        return to_s(self.clock.record())

    def stats(self) -> dict[str, int | float | str]:
        """Counters under stable names, each ending in its unit."""
        return {
            "chip": self.chip.name,
            "launches": self.launches,
            "elapsed_s": self.elapsed_s,
            "device_busy_s": to_s(self.clock.device_busy_ps),
            "device_idle_s": to_s(self.clock.device_idle_ps),
            "hbm_in_use_bytes": self.arrays.in_use_bytes,
            "hbm_peak_bytes": self.arrays.peak_bytes,
            "hbm_capacity_bytes": self.hbm.capacity_bytes,
            "allocations": self.hbm.allocations,
            "live_allocations": self.hbm.live_allocations,
        }


def _output_bytes(graph: Graph) -> int:
    return sum(graph.type_of(value).size_bytes for value in graph.outputs)


def _largest(graph: Graph) -> list[str]:
    """The largest values between the kernels of a program, one line per type and op."""
    schedule = fuse(graph)
    outputs = {schedule.source[v] for v in graph.outputs}
    found: dict[tuple[str, str], list[int]] = {}
    for kernel in schedule.kernels:
        for value, _ in kernel.writes:
            if value not in outputs:
                type_ = graph.type_of(value)
                key = str(type_), graph.ops[kernel.hero].opcode
                found.setdefault(key, []).append(type_.size_bytes)
    ordered = sorted(found.items(), key=lambda item: (-max(item[1]), item[0]))
    return [
        f"  {len(sizes)} x {type_} = {size(sizes[0])} each, of {opcode}"
        for (type_, opcode), sizes in ordered[:_LARGEST]
    ]
