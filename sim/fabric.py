"""The networks of a step in time: which collective occupies which links when, and who waits.

A collective is first simulated by itself, phase by phase; each phase then takes the first gap in
which all links of its kind are free. So collectives on different axes or networks overlap, and
those that need the same links follow each other, as a TPU's queue of transfers runs them. What
cannot be simulated takes the time of its closed form on all axes.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.network.collectives import collective_cost
from torchtpu.perf_model.network.footprint import AXES, Footprint, Group, footprint
from torchtpu.perf_model.network.rates import rates
from torchtpu.perf_model.network.topology import Topology
from torchtpu.sim.clock import to_ps
from torchtpu.sim.collectives import Request, simulate_together, simulated
from torchtpu.sim.faults import Faults

Pairs = tuple[tuple[int, int], ...]
Phases = tuple[tuple[tuple[str, ...], int], ...]  # (resources, picoseconds) of each phase


class Calendar:
    """The intervals in which one resource is taken, in order and without overlap."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.busy_ps = 0

    def free_from(self, at_ps: int, length_ps: int) -> int:
        """The first time from `at_ps` on at which it is free for so long."""
        place = bisect.bisect_right(self._ends, at_ps)
        for begin, end in zip(self._begins[place:], self._ends[place:], strict=True):
            if at_ps + length_ps <= begin:
                break
            at_ps = max(at_ps, end)
        return at_ps

    def take(self, begin_ps: int, length_ps: int) -> None:
        """Mark an interval as taken; it has to be free."""
        place = bisect.bisect_left(self._begins, begin_ps)
        self._begins.insert(place, begin_ps)
        self._ends.insert(place, begin_ps + length_ps)
        self.busy_ps += length_ps


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One collective on the fabric. fabric: the slowest network that it crosses ("ici", "dcn",
    "on_chip", "none"); queued_ps: how long its phases waited for links in all.
    """

    kind: str
    fabric: str
    size_bytes: int
    begin_ps: int
    end_ps: int
    queued_ps: int
    resources: tuple[str, ...]


class Fabric:
    """Accounts for the collectives in flight on one topology, from the view of any device.

    Every collective is run by all groups of its form at the same time, as a program that is the
    same on every device does. `transfers` holds all that were started, in the order of the calls.
    """

    def __init__(
        self, topology: Topology, chip: Chip | None = None, faults: Faults | None = None
    ) -> None:
        self.topology, self.chip = topology, chip or topology.chip
        self.faults = (faults or Faults()).checked(topology)
        self.calendars: dict[str, Calendar] = {}
        self.transfers: list[Transfer] = []
        self._launch_ps = to_ps(rates(self.chip).launch_s)
        self._phases = functools.cache(self._simulated)

    def start(self, kind: str, size_bytes: float, group: Sequence[int], at_ps: int) -> int:
        """Start a collective at a time; the time at which the last device has finished it.

        What was promised before keeps its time: a later call fills gaps or waits. Raises
        CollectiveError, TopologyError, torchtpu.sim.faults.NetworkError.
        """
        members = tuple(group)
        return self._start(kind, round(size_bytes), members, (), at_ps)

    def permute(self, size_bytes: float, pairs: Sequence[tuple[int, int]], at_ps: int) -> int:
        """Start a collective_permute of (source, target) devices, `size_bytes` per message."""
        members = tuple(sorted({device for pair in pairs for device in pair}))
        return self._start("collective_permute", round(size_bytes), members, tuple(pairs), at_ps)

    def _start(self, kind: str, size_bytes: int, group: Group, pairs: Pairs, at_ps: int) -> int:
        phases = self._phases(kind, size_bytes, group, pairs)
        now, queued, used = at_ps, 0, set[str]()
        if phases:
            now += self._launch_ps
        for resources, length_ps in phases:
            begin = self._first_gap(resources, now, length_ps)
            for name in resources:
                self.calendars.setdefault(name, Calendar()).take(begin, length_ps)
            queued += begin - now
            now = begin + length_ps
            used.update(resources)
        self.transfers.append(
            Transfer(
                kind=kind,
                fabric=footprint(group, self.topology).fabric,
                size_bytes=size_bytes,
                begin_ps=at_ps,
                end_ps=now,
                queued_ps=queued,
                resources=tuple(sorted(used)),
            )
        )
        return now

    def busy_ps(self) -> dict[str, int]:
        """Time for which each axis, the cores' links and the data-centre network were in use."""
        return {name: calendar.busy_ps for name, calendar in sorted(self.calendars.items())}

    def _first_gap(self, resources: Sequence[str], at_ps: int, length_ps: int) -> int:
        while True:
            latest = at_ps
            for name in resources:
                if name in self.calendars:
                    latest = max(latest, self.calendars[name].free_from(at_ps, length_ps))
            if latest == at_ps:
                return at_ps
            at_ps = latest

    def _simulated(self, kind: str, size_bytes: int, group: Group, pairs: Pairs) -> Phases:
        """The phases of a collective by itself."""
        if not self.faults and self.chip is self.topology.chip:
            return _healthy(kind, size_bytes, group, pairs, self.topology)
        request = Request(kind=kind, size_bytes=size_bytes, group=group, pairs=pairs)
        return _alone(request, self.topology, self.chip, self.faults)


@functools.lru_cache(maxsize=1024)
def _healthy(kind: str, size_bytes: int, group: Group, pairs: Pairs, topology: Topology) -> Phases:
    request = Request(kind=kind, size_bytes=size_bytes, group=group, pairs=pairs)
    return _alone(request, topology, topology.chip, Faults())


def _alone(request: Request, topology: Topology, chip: Chip, faults: Faults) -> Phases:
    shape = footprint(request.group, topology)
    if shape.size == 1:
        return ()
    launch_ps = to_ps(rates(chip).launch_s)
    if not simulated(request, topology):
        cost = collective_cost(request.kind, request.size_bytes, request.group, topology, chip)
        return ((_all_of(shape, topology), to_ps(cost.time_s) - launch_ps),)
    found = simulate_together([request], topology, chip=chip, faults=faults)
    ends = found.phase_end_ps[0]
    return tuple(
        (resources, end - begin)
        for resources, begin, end in zip(
            found.phase_resources[0], (launch_ps, *ends), ends, strict=False
        )
    )


def _all_of(shape: Footprint, topology: Topology) -> tuple[str, ...]:
    """All axes, and the data-centre network if the group reaches another slice."""
    axes = [name for name, size in zip(AXES, topology.sizes, strict=True) if size > 1]
    return (*(["dcn"] if shape.slices > 1 else []), *axes)
