"""Simulates collectives on a network by events: healthy or with faults, one or several at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.network.collectives import KINDS, CollectiveError
from torchtpu.perf_model.network.footprint import Footprint, Group, footprint, siblings
from torchtpu.perf_model.network.rates import Rates, rates
from torchtpu.perf_model.network.routes import route
from torchtpu.perf_model.network.topology import Coords, Topology
from torchtpu.sim.clock import to_ps
from torchtpu.sim.collective_schedules import Phase, Schedule
from torchtpu.sim.faults import Faults, NetworkError
from torchtpu.sim.folding import folded
from torchtpu.sim.links import Fold, Links, Path, unfolded
from torchtpu.sim.network import Network
from torchtpu.sim.stages import Stage, add_messages

_POINT_TO_POINT = ("collective_permute", "send_recv")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One collective, run by all groups of its form at the same time.

    size_bytes: of the full (unsharded) array; at_ps: when it is launched. With pairs it is a
    collective_permute of just these (source, target) devices, size_bytes a message.
    """

    kind: str
    size_bytes: int
    group: Group
    at_ps: int = 0
    pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """What a simulation found.

    time_ps: from the first launch to the last device's end; end_ps: per request; phase_end_ps: per
    request, the end of each of its phases on the last device; phase_resources: what each occupies
    ("x", "y", "z", "cores", "dcn"). link_bytes: bytes by link name; of
    links that are alike only one is listed, `alike` of them exist. ici_bytes, dcn_bytes: over all
    links of the whole network. messages: events of the simulation.
    """

    time_ps: int
    end_ps: tuple[int, ...]
    phase_end_ps: tuple[tuple[int, ...], ...]
    phase_resources: tuple[tuple[tuple[str, ...], ...], ...]
    link_bytes: Mapping[str, int]
    alike: int
    ici_bytes: int
    dcn_bytes: int
    messages: int


def simulate(
    kind: str,
    size_bytes: int,
    group: Sequence[int],
    topology: Topology,
    *,
    chip: Chip | None = None,
    faults: Faults | None = None,
    fold: bool = True,
) -> Simulated:
    """One collective by itself. Arguments as `collective_cost`; fold=False simulates every device.

    Raises CollectiveError, TopologyError, torchtpu.sim.faults.NetworkError.
    """
    request = Request(kind=kind, size_bytes=math.ceil(size_bytes), group=tuple(group))
    return simulate_together([request], topology, chip=chip, faults=faults, fold=fold)


def simulate_permute(
    size_bytes: int,
    pairs: Sequence[tuple[int, int]],
    topology: Topology,
    *,
    chip: Chip | None = None,
    faults: Faults | None = None,
) -> Simulated:
    """A collective_permute of these (source, target) devices, `size_bytes` per message."""
    members = tuple(sorted({device for pair in pairs for device in pair}))
    request = Request(
        kind="collective_permute",
        size_bytes=math.ceil(size_bytes),
        group=members,
        pairs=tuple(pairs),
    )
    return simulate_together([request], topology, chip=chip, faults=faults)


def simulate_together(
    requests: Sequence[Request],
    topology: Topology,
    *,
    chip: Chip | None = None,
    faults: Faults | None = None,
    fold: bool = True,
) -> Simulated:
    """Several collectives on the same links, each from its own time on."""
    for request in requests:
        _check(request, topology)
    known = rates(chip or topology.chip)
    broken = (faults or Faults()).checked(topology)
    shapes = [footprint(request.group, topology) for request in requests]
    folding = _network(requests, shapes, topology, broken) if fold else unfolded(topology)
    links = Links(topology, folding, known, broken)
    network = Network(links.rate, links.latency_ps)
    runs = []
    for request, shape in zip(requests, shapes, strict=True):
        groups = _groups(request.group, topology, links)
        phases = _phases(request, groups, shape, links, known)
        run = _Run(network, phases)
        launch_ps = to_ps(known.launch_s) if shape.size > 1 else 0
        for device in sorted({device for one in groups for device in one}):
            late = broken.late_ps.get(device, 0)
            network.at(request.at_ps + late + launch_ps, run.starter(device))
        runs.append(run)
    network.run()
    return _result(requests, runs, network, links)


def _check(request: Request, topology: Topology) -> None:
    if request.kind not in KINDS:
        raise CollectiveError(
            f"[{request.kind}] unknown collective, expected one of {', '.join(KINDS)}"
        )
    if request.size_bytes < 0 or request.at_ps < 0:
        raise CollectiveError(
            f"[{request.kind}] expected a size and a time of at least 0, got "
            f"{request.size_bytes} bytes at {request.at_ps} ps"
        )
    if request.kind == "send_recv" and len(request.group) != 2:
        raise CollectiveError(
            f"[send_recv] expected a group of two devices, got {len(request.group)}"
        )
    if not simulated(request, topology):
        raise NetworkError(
            f"[{request.kind}] among {len(request.group)} devices has a closed form only: an "
            "all-to-all on a twisted torus, or a group that is not a box of the torus"
        )


def simulated(request: Request, topology: Topology) -> bool:
    """Whether a collective can be simulated; the others have a closed form only."""
    if request.kind in _POINT_TO_POINT:
        return True
    twisted = topology.twisted and request.kind == "all_to_all"
    return footprint(request.group, topology).regular and not twisted


def _network(
    requests: Sequence[Request], shapes: Sequence[Footprint], topology: Topology, broken: Faults
) -> Fold:
    """The network to simulate: folded where every request's groups tile the topology."""
    for request, shape in zip(requests, shapes, strict=True):
        if request.kind in _POINT_TO_POINT or not shape.tiles:
            return unfolded(topology)
    kinds = [request.kind for request in requests]
    return folded(list(zip(kinds, shapes, strict=True)), topology, broken)


def _groups(group: Group, topology: Topology, links: Links) -> list[Group]:
    """All groups of this form, on the folded network."""
    sizes, fold = links.fold.sizes, links.fold
    found = {}
    for one in siblings(group, topology):
        members: dict[int, None] = {}
        for device in one:
            place = topology.coords(device)
            x, y, z = (place[1 + axis] % sizes[axis] for axis in range(3))
            folded = Coords(place.slice % fold.slices, x, y, z, place.core % fold.cores)
            members[links.device(folded)] = None
        found[tuple(sorted(members))] = tuple(members)
    return list(found.values())


def _phases(
    request: Request, groups: list[Group], shape: Footprint, links: Links, known: Rates
) -> list[Phase]:
    if shape.size == 1:
        return []
    if request.kind in _POINT_TO_POINT:
        return _direct(request, groups, links)
    return Schedule(links, groups, shape, known.chunks).phases(request.kind, request.size_bytes)


def _direct(request: Request, groups: list[Group], links: Links) -> list[Phase]:
    """Messages over dimension-ordered routes: a shift along each group, or a send."""
    stage = Stage(keep=False)
    pairs: list[tuple[int, int, int]]
    if request.pairs:
        pairs = [(source, target, request.size_bytes) for source, target in request.pairs]
    elif request.kind == "send_recv":
        pairs = [(request.group[0], request.group[1], request.size_bytes)]
    else:
        size = -(-request.size_bytes // len(request.group))
        pairs = [
            (source, target, size)
            for group in groups
            for source, target in zip(group, (*group[1:], group[0]), strict=True)
        ]
    add_messages(stage, [(s, t, _way(s, t, links), size) for s, t, size in pairs])
    for group in groups:
        for device in group:
            stage.expected.setdefault(device, 0)
    return [[[stage]]]


def _way(source: int, target: int, links: Links) -> Path:
    start, end = links.coords(source), links.coords(target)
    if source == target:
        return ()
    if start.slice != end.slice:
        return links.over_dcn(source, target)
    if start[:4] == end[:4]:
        return links.to_other_core(source)
    path = tuple(links.link_number(link) for link in route(start, end, links.topology))
    return links.detour(source, target) if links.dead.intersection(path) else path


class _Run:
    """Leads every device through the phases of one collective."""

    def __init__(self, network: Network, phases: list[Phase]) -> None:
        self._phases = phases
        self._left: dict[tuple[int, int], int] = {}
        self.phase_end_ps = [0] * len(phases)
        self.end_ps = 0
        for number, phase in enumerate(phases):
            for track in phase:
                for place, stage in enumerate(track):
                    stage.attach(network, self._next(number, track, place))

    def starter(self, device: int) -> _Starter:
        """What to call when the device begins."""
        return _Starter(self, device)

    def enter(self, device: int, number: int, now_ps: int) -> None:
        """The device begins a phase; beyond the last it has finished."""
        if number == len(self._phases):
            self.end_ps = max(self.end_ps, now_ps)
            return
        self._left[device, number] = len(self._phases[number])
        for track in self._phases[number]:
            track[0].begin(device, now_ps)

    def _next(self, number: int, track: Sequence[Stage], place: int) -> _Next:
        return _Next(self, number, track, place)

    def resources(self, links: Links) -> tuple[tuple[str, ...], ...]:
        """Per phase, the kinds of links that it uses."""
        return tuple(
            tuple(sorted(set[str]().union(*(stage.kinds(links) for stage in _stages(phase)))))
            for phase in self._phases
        )

    def track_done(self, device: int, number: int, now_ps: int) -> None:
        """The device has finished one track of a phase."""
        self._left[device, number] -= 1
        if self._left[device, number] == 0:
            self.phase_end_ps[number] = max(self.phase_end_ps[number], now_ps)
            self.enter(device, number + 1, now_ps)


def _stages(phase: Phase) -> list[Stage]:
    return [stage for track in phase for stage in track]


@dataclass(frozen=True, slots=True)
class _Starter:
    run: _Run
    device: int

    def __call__(self, now_ps: int) -> None:
        self.run.enter(self.device, 0, now_ps)


@dataclass(frozen=True, slots=True)
class _Next:
    """A member has finished a stage: on to the next of its track."""

    run: _Run
    phase: int
    track: Sequence[Stage]
    place: int

    def __call__(self, member: int, now_ps: int) -> None:
        if self.place + 1 < len(self.track):
            self.track[self.place + 1].begin(member, now_ps)
        else:
            self.run.track_done(member, self.phase, now_ps)


def _result(
    requests: Sequence[Request], runs: Sequence[_Run], network: Network, links: Links
) -> Simulated:
    topology = links.topology
    alike = topology.devices // links.devices
    carried = {links.name(i): size for i, size in enumerate(network.carried) if size}
    ici = sum(size for name, size in carried.items() if name.startswith("ici"))
    dcn = sum(size for name, size in carried.items() if name.startswith("dcn out"))
    end = max((run.end_ps for run in runs), default=0)
    return Simulated(
        time_ps=end - min((request.at_ps for request in requests), default=0),
        end_ps=tuple(run.end_ps for run in runs),
        phase_end_ps=tuple(tuple(run.phase_end_ps) for run in runs),
        phase_resources=tuple(run.resources(links) for run in runs),
        link_bytes=carried,
        alike=alike,
        ici_bytes=ici * alike,
        dcn_bytes=dcn * alike,
        messages=network.messages,
    )
