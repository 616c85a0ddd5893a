"""The timeline of a step on one of many devices: kernels in order, collectives beside them.

The core works kernels off in the order of `prefetch_order`; where it comes to a collective it
starts it and goes on. A collective runs as soon as it is started, its operands are there and its
network is free; who reads its result waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from torchtpu.perf_model.fusion import Kernel, Schedule
from torchtpu.perf_model.kernel_cost import KernelCost
from torchtpu.perf_model.network.collective_ops import Exchange, exchange
from torchtpu.perf_model.network.rates import constants
from torchtpu.perf_model.network.topology import Topology
from torchtpu.sim.clock import to_ps, to_s
from torchtpu.sim.fabric import Fabric
from torchtpu.sim.faults import Faults
from torchtpu.sim.prefetch import prefetch_order


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Where the time of a step goes, in seconds.

    busy_s: the core computes; exposed_s: it waits for collectives. network_s: how long collectives
    run, by (kind, fabric). waits: how long the core waited for which kernel, by number.
    """

    time_s: float
    busy_s: float
    exposed_s: float
    network_s: Mapping[tuple[str, str], float]
    waits: Mapping[int, float]


class StepSimulator:
    """Runs schedules on one device of a topology. Deterministic, in whole picoseconds."""

    def __init__(self, topology: Topology, faults: Faults | None = None) -> None:
        self.topology = topology
        self._faults = faults

    @property
    def name(self) -> str:
        """The topology's name."""
        return self.topology.name

    @property
    def devices(self) -> int:
        """Devices of the topology."""
        return self.topology.devices

    def run(self, schedule: Schedule, costs: Sequence[KernelCost]) -> Timeline:
        """Simulate the kernels of a schedule, whose costs on the core are given in its order."""
        exchanges = [exchange(schedule.graph.ops[k.hero], schedule.graph) for k in schedule.kernels]
        run = _Run(schedule.source, Fabric(self.topology, faults=self._faults))
        for number in prefetch_order(schedule, [one is not None for one in exchanges]):
            kernel, one = schedule.kernels[number], exchanges[number]
            if one is None:
                run.compute(kernel, to_ps(costs[number].time_s))
            else:
                run.start(number, kernel, one)
        return run.timeline()


def slowest(count: int) -> float:
    """How many standard deviations the slowest of `count` slices is late (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


class _Run:
    def __init__(self, source: Sequence[int], fabric: Fabric) -> None:
        self._source, self._fabric = source, fabric
        self._ready: dict[int, tuple[int, int]] = {}  # value -> (when, made by which collective)
        self._core = self._busy = 0
        self._network: dict[tuple[str, str], int] = {}
        self._waits: dict[int, int] = {}
        self._across = -1  # the last collective across slices

    def _inputs_ready(self, kernel: Kernel) -> tuple[int, int]:
        ready = (self._ready.get(self._source[value], (0, -1)) for value, _ in kernel.reads)
        return max(ready, default=(0, -1))

    def compute(self, kernel: Kernel, duration: int) -> None:
        """The core runs a kernel, waiting for its inputs."""
        self._wait(*self._inputs_ready(kernel))
        self._core += duration
        self._busy += duration
        self._write(kernel, self._core, -1)

    def start(self, number: int, kernel: Kernel, one: Exchange) -> None:
        """The core starts a collective, which the network runs when it can."""
        begin = max(self._core, self._inputs_ready(kernel)[0])
        if one.kind == "collective_permute":
            end = self._fabric.permute(one.size_bytes, one.pairs, begin)
        else:
            end = self._fabric.start(one.kind, one.size_bytes, one.group, begin)
        transfer = self._fabric.transfers[-1]
        alone = end - begin - transfer.queued_ps
        if transfer.fabric == "dcn":
            self._across = number
        key = (one.kind, transfer.fabric)
        self._network[key] = self._network.get(key, 0) + alone
        self._write(kernel, end, number)

    def _wait(self, until: int, collective: int) -> None:
        if until > self._core:
            self._waits[collective] = self._waits.get(collective, 0) + until - self._core
            self._core = until

    def _write(self, kernel: Kernel, at: int, collective: int) -> None:
        for value, _ in kernel.writes:
            self._ready[self._source[value]] = (at, collective)

    def timeline(self) -> Timeline:
        """What has been; the step ends when the last collective does, on the slowest slice."""
        last = max((when, who) for when, who in [(0, -1), *self._ready.values()])
        self._wait(*last)
        if self._across >= 0:
            late = slowest(self._fabric.topology.slices) * constants().dcn_slice_spread
            self._wait(self._core + round(self._core * late), self._across)
        return Timeline(
            time_s=to_s(self._core),
            busy_s=to_s(self._busy),
            exposed_s=to_s(self._core - self._busy),
            network_s={k: to_s(v) for k, v in self._network.items()},
            waits={k: to_s(v) for k, v in self._waits.items()},
        )
