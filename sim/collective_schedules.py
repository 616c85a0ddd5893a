"""Collectives as phases of parallel tracks of stages: which stage runs after which, on what data.

The algorithm is the one that the closed form costs (`torchtpu.perf_model.network.colours`); nothing
else is shared with it: times come from the events on the links.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from torchtpu.perf_model.network.box import cycle
from torchtpu.perf_model.network.collectives import BARRIER_BYTES
from torchtpu.perf_model.network.colours import Colour, plan, used_spans
from torchtpu.perf_model.network.footprint import AXES, AxisSpan, Footprint, Group
from torchtpu.perf_model.network.topology import Coords
from torchtpu.sim.links import Links, Path
from torchtpu.sim.stages import (
    Line,
    Stage,
    Walk,
    add_exchange,
    add_gather,
    add_messages,
    add_scatter,
)

Track = list[Stage]
Phase = list[Track]
Add = Callable[[Stage, Walk, int, int], None]


class Schedule:
    """Builds the phases of one collective that all of `groups` run at the same time.

    links: the network, folded or not; groups: device numbers of it; shape: the footprint of the
    real group; chunks: pieces of a ring step.
    """

    def __init__(
        self, links: Links, groups: Sequence[Group], shape: Footprint, chunks: int
    ) -> None:
        self.links, self.groups, self.shape, self.chunks = links, groups, shape, chunks

    def phases(self, kind: str, size_bytes: int) -> list[Phase]:
        """The phases of a collective; a device enters one when it has finished the one before."""
        build: dict[str, Callable[[int], list[Phase]]] = {
            "all_gather": self._all_gather,
            "reduce_scatter": self._reduce_scatter,
            "all_reduce": self._all_reduce,
            "broadcast": self._all_reduce,
            "barrier": lambda _: self._all_reduce(BARRIER_BYTES),
            "all_to_all": self._all_to_all,
        }
        return [phase for phase in build[kind](size_bytes) if phase]

    def _all_gather(self, size: int) -> list[Phase]:
        spans = used_spans("all_gather", self.shape.spans)
        return [
            self._between_slices(_up(size, self.shape.size), 1),
            *self._torus(add_gather, size, spans),
            self._cores(_up(size, self.shape.cores)),
        ]

    def _reduce_scatter(self, size: int) -> list[Phase]:
        spans = used_spans("reduce_scatter", self.shape.spans)
        return [
            self._cores(_up(size, self.shape.cores)),
            *self._torus(add_scatter, size, spans),
            self._between_slices(_up(size, self.shape.size), 1),
        ]

    def _all_reduce(self, size: int) -> list[Phase]:
        spans = used_spans("all_reduce", self.shape.spans)
        cores = _up(size, self.shape.cores)
        return [
            self._cores(cores),
            *self._torus(add_scatter, size, spans),
            self._between_slices(_up(size, self.shape.size), 2),
            *self._torus(add_gather, size, spans),
            self._cores(cores),
        ]

    def _all_to_all(self, size: int) -> list[Phase]:
        held = _up(size, self.shape.size)
        return [
            self._between_slices(_up(held, self.shape.slices), 1),
            self._cores(_up(held, self.shape.cores)),
            *self._exchange(held),
        ]

    def _torus(self, add: Add, size: int, spans: tuple[AxisSpan, ...]) -> list[Phase]:
        """A phase per axis, in each a track per colour; scatters take the axes backwards."""
        if not spans:
            return []
        colours = plan(spans)
        phases: list[Phase] = [[] for _ in spans]
        for colour, share in zip(
            colours, _shares(_up(size, self.shape.cores), colours), strict=True
        ):
            piece = _up(share, math.prod(span.count for span in spans))
            for phase, position in zip(phases, colour.order, strict=True):
                phase.append([self._along(add, spans[position], piece)])
                piece *= spans[position].count
        return phases if add is add_gather else phases[::-1]

    def _along(self, add: Add, span: AxisSpan, piece: int) -> Stage:
        stage = Stage(keep=add is add_gather, axes=span.axis)
        chunks = self.chunks + self.chunks % 2
        for walk in self._walks(span):
            add(stage, walk, piece, chunks)
        return stage

    def _exchange(self, held: int) -> list[Phase]:
        """A phase per axis, in each a track per colour, every one on another axis."""
        spans = self.shape.spans
        part = _up(held, len(spans)) if spans else 0
        phases: list[Phase] = []
        for first in range(len(spans)):
            tracks = []
            for span in (*spans[first:], *spans[:first]):
                stage = Stage(keep=False)
                for line in self._lines(span):
                    add_exchange(stage, line, _up(part, span.count))
                tracks.append([stage])
            phases.append(tracks)
        return phases

    def _cores(self, size: int) -> Phase:
        """Each core sends the other its part."""
        if self.shape.cores == 1:
            return []
        stage = Stage(keep=False)
        messages = []
        for device in sorted({device for group in self.groups for device in group}):
            place = self.links.coords(device)
            other = place._replace(core=(place.core + 1) % self.links.fold.cores)
            path = self.links.to_other_core(device)
            messages.append((device, self.links.device(other), path, size))
        add_messages(stage, messages)
        return [[stage]]

    def _between_slices(self, size: int, exchanges: int) -> Phase:
        """Every device exchanges `size` bytes with its like in every other slice, so many times."""
        if self.shape.slices == 1:
            return []
        track = []
        for _ in range(exchanges):
            stage = Stage(keep=False)
            add_messages(stage, list(self._peers(size)))
            track.append(stage)
        return [track]

    def _peers(self, size: int) -> Iterable[tuple[int, int, Path, int]]:
        for group in self.groups:
            alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for device in group:
                alike[self.links.coords(device)[1:]].append(device)
            for same in alike.values():
                folded = len(same) == 1
                others = same * (self.shape.slices - 1) if folded else same
                for source in same:
                    for target in others:
                        if folded or target != source:
                            yield source, target, self.links.over_dcn(source, target), size

    def _walks(self, span: AxisSpan) -> list[Walk]:
        if len(span.axis) > 1 and self.links.chips == 1:
            member = self.groups[0][0]
            around = {(member, step): self._hop(member, member, 0, step, 1) for step in (1, -1)}
            return [Walk(members=(member,), size=span.count, routes=around)]
        if len(span.axis) > 1:
            return [self._through_box(group) for group in self._per_core_and_slice()]
        return [line.walk() for line in self._lines(span)]

    def _lines(self, span: AxisSpan) -> list[Line]:
        axis = AXES.index(span.axis)
        found = []
        for group in self.groups:
            lines: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for device in sorted(group):
                place = list(self.links.coords(device))
                place[1 + axis] = 0
                lines[tuple(place)].append(device)
            found += [self._line(line, axis, span) for line in lines.values()]
        return found

    def _line(self, members: Sequence[int], axis: int, span: AxisSpan) -> Line:
        """Members along an axis; a ring with a dead link becomes the line that is left of it."""
        members, ring = tuple(members), span.ring
        if ring:
            open_at = [i for i, m in enumerate(members) if not self._both(m, axis, span.stride)]
            if open_at:
                ring, cut = False, open_at[0] + 1
                members = (*members[cut:], *members[:cut])
        routes: dict[tuple[int, int], tuple[Path, int]] = {}
        pairs = list(itertools.pairwise(members))
        if ring:
            pairs.append((members[-1], members[0]))
        for here, there in pairs:
            routes[here, 1] = self._hop(here, there, axis, 1, span.stride)
            routes[there, -1] = self._hop(there, here, axis, -1, span.stride)
        return Line(members=members, size=span.count, ring=ring, routes=routes)

    def _both(self, member: int, axis: int, stride: int) -> bool:
        """Whether the way up from a member to the next, and back, is whole."""
        return self.links.path(member, axis, 1, stride) is not None

    def _hop(self, here: int, there: int, axis: int, step: int, stride: int) -> tuple[Path, int]:
        found = self.links.path(here, axis, step, stride)
        if found is not None and found[1] == there:
            return found
        return self.links.detour(here, there), there

    def _per_core_and_slice(self) -> list[list[int]]:
        found: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for number, group in enumerate(self.groups):
            for device in group:
                place = self.links.coords(device)
                found[number, place.slice, place.core].append(device)
        return list(found.values())

    def _through_box(self, members: Sequence[int]) -> Walk:
        """The ring through all chips of a box."""
        places = [self.links.coords(device) for device in members]
        low = [min(place[field] for place in places) for field in (1, 2, 3)]
        sizes = [max(place[field] for place in places) - low[field - 1] + 1 for field in (1, 2, 3)]
        order = []
        for place in cycle(sizes):
            x, y, z = (p + base for p, base in zip(place, low, strict=True))
            order.append(self.links.device(Coords(places[0].slice, x, y, z, places[0].core)))
        routes: dict[tuple[int, int], tuple[Path, int]] = {}
        for here, there in zip(order, (*order[1:], order[0]), strict=True):
            routes[here, 1] = self._neighbour(here, there), there
            routes[there, -1] = self._neighbour(there, here), here
        return Walk(members=tuple(order), size=len(order), routes=routes)

    def _neighbour(self, here: int, there: int) -> Path:
        """The one link between neighbours, or the way around it."""
        start, end = self.links.coords(here), self.links.coords(there)
        for axis in range(3):
            step = end[1 + axis] - start[1 + axis]
            if step:
                found = self.links.path(here, axis, step, 1)
                if found is not None and found[1] == there:
                    return found[0]
        return self.links.detour(here, there)


def _up(size: int, parts: int) -> int:
    """A part of `size` in whole bytes, rounded up as the compiler pads."""
    return -(-size // parts)


def _shares(size: int, colours: Sequence[Colour]) -> list[int]:
    """The bytes of each colour; together `size`."""
    found, before, total = [], 0, 0.0
    for colour in colours:
        total += colour.share
        now = round(size * min(total, 1.0))
        found.append(now - before)
        before = now
    found[-1] += size - before
    return found
