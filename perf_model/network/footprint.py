"""What a replica group looks like on the torus: axes, rings and lines, strides, shared links."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchtpu.perf_model.network.topology import Coords, Topology, TopologyError

AXES = ("x", "y", "z")
Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisSpan:
    """A group's members along one axis of the torus: `count` of them, `stride` chips apart.

    A ring uses both directions all the way round; a line does not close. `sharing` groups use the
    same links: `stride` where every device takes part in a group of this form, else 1.
    """

    axis: str
    count: int
    stride: int
    sharing: int
    ring: bool

    def __str__(self) -> str:
        apart = f" every {self.stride}" if self.stride > 1 else ""
        return f"{'ring' if self.ring else 'line'} of {self.count} on {self.axis}{apart}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Where a group lies. `regular`: it is a box of evenly spaced members, the same in every slice.

    spans: the torus axes with more than one member; cores: members per chip; slices: slices that
    it reaches. For an irregular group spans is empty. tiles: groups of this form cover the
    topology, so a program that is the same on every device runs all of them at once.
    """

    size: int
    spans: tuple[AxisSpan, ...]
    cores: int
    slices: int
    regular: bool
    tiles: bool

    @property
    def per_slice(self) -> int:
        """Members in one slice."""
        return self.size // self.slices if self.regular else self.size

    @property
    def fabric(self) -> str:
        """The slowest network it crosses: "dcn", "ici", "on_chip" or "none" (one device)."""
        if self.slices > 1:
            return "dcn"
        if self.spans or not self.regular:
            return "ici"
        return "on_chip" if self.cores > 1 else "none"

    def __str__(self) -> str:
        parts = [str(span) for span in self.spans]
        if not self.regular:
            parts.append(f"{self.size} devices, not a box")
        if self.cores > 1:
            parts.append(f"{self.cores} cores of a chip")
        if self.slices > 1:
            parts.append(f"{self.slices} slices over DCN")
        return ", ".join(parts) or "one device"


@functools.lru_cache(maxsize=4096)
def footprint(group: Group, topology: Topology) -> Footprint:
    """The footprint of a group of device numbers. Raises TopologyError for bad or repeated ones."""
    members = [topology.coords(device) for device in group]
    if not members or len(set(members)) != len(members):
        raise TopologyError(f"[group] expected distinct devices, at least one, got {_short(group)}")
    values = [sorted({member[field] for member in members}) for field in range(5)]
    boxed = math.prod(map(len, values)) == len(members)
    if not boxed or not all(map(_even, values[1:4])):
        slices = len(values[0])
        return Footprint(
            size=len(group), spans=(), cores=1, slices=slices, regular=False, tiles=False
        )
    tiles = _tiles(values, topology)
    spans = tuple(_span(topology, axis, values[1 + axis], tiles) for axis in range(3))
    return Footprint(
        size=len(group),
        spans=tuple(span for span in spans if span.count > 1),
        cores=len(values[4]),
        slices=len(values[0]),
        regular=True,
        tiles=tiles,
    )


def _even(places: Sequence[int]) -> bool:
    """Whether sorted coordinates are evenly spaced."""
    return len({b - a for a, b in itertools.pairwise(places)}) < 2


def _stride(places: Sequence[int]) -> int:
    return places[1] - places[0] if len(places) > 1 else 1


def _tiles(values: Sequence[Sequence[int]], topology: Topology) -> bool:
    """Whether shifts along each of (slice, x, y, z, core) fill it with such sets of coordinates."""
    limits = (topology.slices, *topology.sizes, topology.cores)
    rings = (False, *topology.rings, False)
    for places, limit, ring in zip(values, limits, rings, strict=True):
        period = len(places) * _stride(places)
        if limit % period or not (ring or places[0] % period < _stride(places)):
            return False
    return _even(values[0])


def _span(topology: Topology, axis: int, places: Sequence[int], tiles: bool) -> AxisSpan:
    stride = _stride(places)
    full = len(places) * stride == topology.sizes[axis]
    return AxisSpan(
        axis=AXES[axis],
        count=len(places),
        stride=stride,
        sharing=stride if tiles else 1,
        ring=full and topology.rings[axis] and len(places) > 1,
    )


@functools.lru_cache(maxsize=256)
def siblings(group: Group, topology: Topology) -> tuple[Group, ...]:
    """All groups of the same form that together cover the topology, this one first.

    What a program that runs the same on every device (SPMD) makes of one replica group: shifts of
    it along the axes. Only the group itself where its shifts do not tile the topology.
    """
    shape = footprint(group, topology)
    if not shape.tiles:
        return (group,)
    members = [topology.coords(device) for device in group]
    limits = (topology.slices, *topology.sizes, topology.cores)
    choices = [
        _shifts(sorted({member[field] for member in members}), limit)
        for field, limit in enumerate(limits)
    ]
    found = [
        tuple(topology.device(_moved(member, shift, limits)) for member in members)
        for shift in itertools.product(*choices)
    ]
    return (group, *(one for one in found if one != group))


def _shifts(places: Sequence[int], limit: int) -> list[int]:
    """By how much sorted coordinates are moved to fill an axis with their like."""
    stride = _stride(places)
    period = len(places) * stride
    return [block + offset for block in range(0, limit, period) for offset in range(stride)]


def _moved(member: Coords, shift: Sequence[int], limits: Sequence[int]) -> Coords:
    """Shifts of a tiling set end inside, or round a ring: modulo the size of the axis."""
    return Coords(*((m + s) % limit for m, s, limit in zip(member, shift, limits, strict=True)))


def _short(group: Sequence[int]) -> str:
    return f"{list(group[:8])}{'...' if len(group) > 8 else ''}"
