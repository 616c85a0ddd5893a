"""Dimension-ordered shortest routes on the torus, and how many of them cross each link."""

from __future__ import annotations

import functools
from collections import Counter, deque
from typing import NamedTuple

from torchtpu.perf_model.network.topology import Coords, Topology


class Link(NamedTuple):
    """A directed ICI link: from the chip at (slice, x, y, z) one step along an axis."""

    slice: int
    x: int
    y: int
    z: int
    axis: int
    step: int


def route(source: Coords, target: Coords, topology: Topology) -> list[Link]:
    """The links from one chip to another of the same slice, x first, then y, then z.

    Where both ways round a ring are equally long, chips at even places go up and others down.
    """
    place = [source.x, source.y, source.z]
    goal = (target.x, target.y, target.z)
    links = []
    for axis, size in enumerate(topology.sizes):
        steps = _steps(place[axis], goal[axis], size, topology.rings[axis])
        for _ in range(abs(steps)):
            step = 1 if steps > 0 else -1
            links.append(Link(source.slice, place[0], place[1], place[2], axis, step))
            place[axis] = (place[axis] + step) % size
    return links


def _steps(start: int, end: int, size: int, ring: bool) -> int:
    """Signed number of steps of the shorter way."""
    ahead = end - start
    if not ring:
        return ahead
    ahead %= size
    if 2 * ahead == size:
        return ahead if start % 2 == 0 else -ahead
    return ahead if 2 * ahead < size else ahead - size


class Traffic(NamedTuple):
    """What a set of point-to-point messages of equal size asks of the network.

    busiest: messages over the busiest directed ICI link; hops: links of the longest route;
    on_chip: whether some only change cores; outgoing: messages to other slices per device at most.
    """

    busiest: int
    hops: int
    on_chip: bool
    outgoing: int


@functools.lru_cache(maxsize=256)
def traffic(pairs: tuple[tuple[int, int], ...], topology: Topology) -> Traffic:
    """The traffic of (source, target) pairs of device numbers."""
    links: Counter[Link] = Counter()
    away: Counter[int] = Counter()
    hops, on_chip = 0, False
    for source, target in pairs:
        start, end = topology.coords(source), topology.coords(target)
        if start.slice != end.slice:
            away[source] += 1
            continue
        path = route(start, end, topology)
        links.update(path)
        hops = max(hops, len(path))
        on_chip |= start[:4] == end[:4] and source != target
    return Traffic(
        busiest=max(links.values(), default=0),
        hops=hops,
        on_chip=on_chip,
        outgoing=max(away.values(), default=0),
    )


@functools.lru_cache(maxsize=64)
def twisted_distances(topology: Topology) -> tuple[float, int]:
    """(mean, longest) shortest distance between chips of a twisted torus, in links.

    Going round the x axis shifts by half of the longest axis, z. The torus looks the same from
    every chip, so the distances from one chip are those from all.
    """
    sx, sy, sz = topology.sizes
    seen, waiting = {(0, 0, 0): 0}, deque([(0, 0, 0)])
    while waiting:
        x, y, z = waiting.popleft()
        for step in (1, -1):
            turn, inside = divmod(x + step, sx)
            around = (inside, y, (z + turn * sz // 2) % sz)
            for place in (around, (x, (y + step) % sy, z), (x, y, (z + step) % sz)):
                if place not in seen:
                    seen[place] = seen[x, y, z] + 1
                    waiting.append(place)
    return sum(seen.values()) / len(seen), max(seen.values())
