"""One simulated device: a clock and an HBM account of a chip."""

from __future__ import annotations

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.constants import constants
from torchtpu.perf_model.program import Graph
from torchtpu.perf_model.roofline import program_time_s
from torchtpu.sim.clock import Clock, to_ps, to_s
from torchtpu.sim.memory import HbmAccount


class SimDevice:
    """A device of the given chip. All times are simulated; nothing depends on the machine it runs
    on.
    """

    def __init__(self, chip: Chip, *, enforce_capacity: bool = True) -> None:
        self.chip = chip.require_complete()
        self.clock = Clock()
        self.hbm = HbmAccount(
            capacity_bytes=chip.hbm_usable_bytes, chip=chip.name, enforce=enforce_capacity
        )
        self.launches = 0

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
            "hbm_in_use_bytes": self.hbm.in_use_bytes,
            "hbm_peak_bytes": self.hbm.peak_bytes,
            "hbm_capacity_bytes": self.hbm.capacity_bytes,
            "allocations": self.hbm.allocations,
            "live_allocations": self.hbm.live_allocations,
        }
