"""One stage of a collective: what each member sends along one axis, forwards and waits for.

An all-gather passes pieces on round the ring (or along the line); a reduce-scatter runs the same
way backwards, partial sums growing on their way to the member that keeps them; an exchange
(all-to-all) sends each block straight to its member. A member takes part from when it begins.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchtpu.sim.links import Links, Path
from torchtpu.sim.network import Network

Done = Callable[[int, int], None]
_Route = tuple[Path, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """Members in the order of a closed ring, and the way from each to the next and the previous.

    `size` is the length of the ring also where it is folded into one member. routes: by (member, +1
    or -1).
    """

    members: tuple[int, ...]
    size: int
    routes: dict[tuple[int, int], _Route]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Members in the order of their places on an axis, and the way to each neighbour.

    A ring closes; where it is folded there is one member that is its own neighbour. At the ends of
    a line routes has no entry.
    """

    members: tuple[int, ...]
    size: int
    ring: bool
    routes: dict[tuple[int, int], _Route]

    def walk(self) -> Walk:
        """A closed ring through the members: round, or to and fro on a line (0, 2, 3, 1)."""
        if self.ring:
            return Walk(members=self.members, size=self.size, routes=self.routes)
        order = (*self.members[::2], *reversed(self.members[1::2]))
        place = {member: i for i, member in enumerate(self.members)}
        routes: dict[tuple[int, int], _Route] = {}
        for here, there in zip(order, (*order[1:], order[0]), strict=True):
            routes[here, 1] = self._way(place[here], place[there]), there
            routes[there, -1] = self._way(place[there], place[here]), here
        return Walk(members=order, size=self.size, routes=routes)

    def _way(self, start: int, end: int) -> Path:
        step = 1 if end > start else -1
        path: list[int] = []
        for place in range(start, end, step):
            path += self.routes[self.members[place], step][0]
        return tuple(path)


class Message(NamedTuple):
    """What a member sends on: the way to the target, bytes, direction and members still to pass."""

    path: Path
    target: int
    size_bytes: int
    step: int
    hops: int


class Stage:
    """The plan of one stage for all members, and how far each has come.

    keep: whether arrivals on the way count too (gather) or only those at their end; sends: what a
    member begins with; expected: arrivals after which it has finished and `done` is called; axes:
    those that it occupies beyond what its paths show.
    """

    def __init__(self, *, keep: bool, axes: str = "") -> None:
        self.keep, self.axes = keep, axes
        self.routes: dict[tuple[int, int], _Route] = {}
        self.sends: dict[int, list[Message]] = defaultdict(list)
        self.expected: dict[int, int] = {}
        self._begun: set[int] = set()
        self._got: dict[int, int] = defaultdict(int)
        self._held: dict[int, list[Message]] = defaultdict(list)

    def attach(self, network: Network, done: Done) -> None:
        """Say where messages go and who hears of members that have finished."""
        self._network, self._done = network, done

    def kinds(self, links: Links) -> set[str]:
        """The kinds of links that the stage occupies."""
        paths = [path for path, _ in self.routes.values()]
        paths += [message.path for sends in self.sends.values() for message in sends]
        return {links.kind(link) for path in paths for link in path} | set(self.axes)

    def begin(self, member: int, now_ps: int) -> None:
        """The member takes part from now on: it sends its own, and what it was holding."""
        self._begun.add(member)
        for message in (*self.sends.get(member, ()), *self._held.pop(member, ())):
            self._send(message, now_ps)
        self._check(member, now_ps)

    def _send(self, message: Message, now_ps: int) -> None:
        arrived = functools.partial(self._arrive, message)
        self._network.send(now_ps, message.path, message.size_bytes, arrived)

    def _arrive(self, message: Message, now_ps: int) -> None:
        _, member, size, step, hops = message
        if hops > 1:
            path, target = self.routes[member, step]
            onward = Message(path, target, size, step, hops - 1)
            if member in self._begun:
                self._send(onward, now_ps)
            else:
                self._held[member].append(onward)
        if self.keep or hops == 1:
            self._got[member] += 1
            self._check(member, now_ps)

    def _check(self, member: int, now_ps: int) -> None:
        if member in self._begun and self._got[member] == self.expected[member]:
            self._done(member, now_ps)


def split(total: int, parts: int) -> list[int]:
    """A whole number of bytes in `parts` nearly equal whole parts."""
    return [(total * (i + 1)) // parts - (total * i) // parts for i in range(parts)]


def ring_reach(size: int, chunk: int, chunks: int, step: int) -> int:
    """Hops of a chunk on a ring: the opposite member gets half of them from either side."""
    if size % 2:
        return size // 2
    first_half = chunk < chunks // 2
    return size // 2 - (first_half != (step > 0))


def add_gather(stage: Stage, walk: Walk, piece_bytes: int, chunks: int) -> None:
    """All-gather of a piece of each member along a walk."""
    sizes = split(piece_bytes, chunks)
    stage.routes.update(walk.routes)
    for member in walk.members:
        stage.expected[member] = (walk.size - 1) * chunks
        for chunk, size in enumerate(sizes):
            for step in (1, -1):
                hops = ring_reach(walk.size, chunk, chunks, step)
                if hops:
                    path, target = walk.routes[member, step]
                    stage.sends[member].append(Message(path, target, size, step, hops))


def add_scatter(stage: Stage, walk: Walk, piece_bytes: int, chunks: int) -> None:
    """Reduce-scatter along a walk; every member keeps a piece. The mirror image of the gather."""
    sizes = split(piece_bytes, chunks)
    stage.routes.update(walk.routes)
    for member in walk.members:
        stage.expected[member] = 0
        for chunk, size in enumerate(sizes):
            for step in (1, -1):
                hops = ring_reach(walk.size, chunk, chunks, step)
                if hops:
                    path, target = walk.routes[member, step]
                    stage.sends[member].append(Message(path, target, size, step, hops))
                    stage.expected[member] += 1


def add_exchange(stage: Stage, line: Line, block_bytes: int) -> None:
    """All-to-all along an axis: a block from each member to each other, by the shorter way."""
    halves = split(block_bytes, 2)
    for position, member in enumerate(line.members):
        stage.expected[member] = line.size - 1
        for hops in range(line.size - 1, 0, -1):
            for step in (1, -1):
                if line.ring and 2 * hops == line.size:
                    _direct(stage, line, member, hops, step, halves[step < 0])
                elif _goes(line, position, hops, step):
                    _direct(stage, line, member, hops, step, block_bytes)
        if line.ring and line.size % 2 == 0:
            stage.expected[member] += 1


def _goes(line: Line, position: int, hops: int, step: int) -> bool:
    if line.ring:
        return 2 * hops < line.size
    return 0 <= position + step * hops < line.size


def _direct(stage: Stage, line: Line, member: int, hops: int, step: int, size: int) -> None:
    """One block over several hops without a stop."""
    path: list[int] = []
    place = member
    for _ in range(hops):
        links, place = line.routes[place, step]
        path += links
    stage.sends[member].append(Message(tuple(path), place, size, step, 1))


def add_messages(stage: Stage, messages: Sequence[tuple[int, int, Path, int]]) -> None:
    """Point-to-point messages: (source, target, path, bytes)."""
    for source, target, path, size in messages:
        stage.sends[source].append(Message(path, target, size, 1, 1))
        stage.expected[target] = stage.expected.get(target, 0) + 1
        stage.expected.setdefault(source, 0)
