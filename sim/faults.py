"""What is wrong with a network: slow links, dead links, devices that start late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torchtpu.perf_model.network.routes import Link
from torchtpu.perf_model.network.topology import Topology


class NetworkError(ValueError):
    """A collective that the network cannot carry, or a fault that does not exist."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """slow: rate of a directed link as a share of the healthy one (0.5: half as fast); dead: links
    that carry nothing, in either direction; late_ps: how much later a device starts.
    """

    slow: Mapping[Link, float] = field(default_factory=dict)
    dead: frozenset[Link] = frozenset()
    late_ps: Mapping[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.slow or self.dead or self.late_ps)

    def checked(self, topology: Topology) -> Faults:
        """These faults, dead links in both directions. Raises NetworkError for impossible ones."""
        for link, share in self.slow.items():
            if not 0 < share <= 1:
                raise NetworkError(
                    f"[faults] {_name(link)}: expected a share of the rate above 0 and at most 1, "
                    f"got {share}; a link that carries nothing is dead"
                )
        dead = set()
        for link in [*self.slow, *self.dead]:
            far = other_end(link, topology)
            if link in self.dead:
                dead |= {link, far}
        for device, late in self.late_ps.items():
            topology.coords(device)
            if late < 0:
                raise NetworkError(
                    f"[faults] device {device}: expected a delay >= 0, got {late} ps"
                )
        return Faults(slow=dict(self.slow), dead=frozenset(dead), late_ps=dict(self.late_ps))


def other_end(link: Link, topology: Topology) -> Link:
    """The same cable in the other direction. Raises NetworkError where there is no such link."""
    place = [link.x, link.y, link.z]
    sizes = topology.sizes
    inside = all(0 <= p < s for p, s in zip(place, sizes, strict=True))
    if not (inside and 0 <= link.slice < topology.slices and link.axis in (0, 1, 2)):
        raise NetworkError(f"[faults] {topology.name} has no link {_name(link)}")
    size, ring = sizes[link.axis], topology.rings[link.axis]
    far = place[link.axis] + link.step
    if link.step not in (1, -1) or size == 1 or not (ring or 0 <= far < size):
        raise NetworkError(f"[faults] {topology.name} has no link {_name(link)}")
    place[link.axis] = far % size
    return Link(link.slice, place[0], place[1], place[2], link.axis, -link.step)


def _name(link: Link) -> str:
    way = f"{'+' if link.step > 0 else '-'}{'xyz'[link.axis] if link.axis in (0, 1, 2) else '?'}"
    return f"from chip ({link.x}, {link.y}, {link.z}) of slice {link.slice} along {way}"


def dead_links(links: Iterable[Link]) -> Faults:
    """Faults with only these links dead."""
    return Faults(dead=frozenset(links))
