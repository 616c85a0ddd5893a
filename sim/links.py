"""The links of a network as numbered resources: torus, between cores, and network cards.

A network that is the same all over may be folded (`torchtpu.sim.folding` says when): chips that are
alike are one, and what they send to each other returns to that one.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from torchtpu.perf_model.network.rates import Rates
from torchtpu.perf_model.network.routes import Link
from torchtpu.perf_model.network.topology import Coords, Topology
from torchtpu.sim.clock import to_ps
from torchtpu.sim.faults import Faults, NetworkError

Path = tuple[int, ...]
_PORTS = 6  # directed links out of a chip: two for each axis


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """What is left of each axis (`sizes`), whether it closes, and whether slices, cores are one."""

    sizes: tuple[int, int, int]
    rings: tuple[bool, bool, bool]
    slices: int
    cores: int


def unfolded(topology: Topology) -> Fold:
    """The network as it is."""
    return Fold(
        sizes=topology.sizes, rings=topology.rings, slices=topology.slices, cores=topology.cores
    )


class Links:
    """Every directed link with its rate and latency, and the paths along them.

    rate: bytes/s; latency_ps: per link. Numbers: six per chip, one per device to the other core,
    one per device each for its share of its host's network cards, out and in.
    """

    def __init__(self, topology: Topology, fold: Fold, known: Rates, faults: Faults) -> None:
        self.topology, self.fold = topology, fold
        self.chips = fold.slices * math.prod(fold.sizes)
        self.devices = self.chips * fold.cores
        ici = round(known.link_bytes_per_s * fold.cores / topology.cores)
        hop, far = to_ps(known.hop_latency_s), to_ps(known.dcn_latency_s)
        self._first_core = _PORTS * self.chips
        self._first_out = self._first_core + self.devices
        self._first_in = self._first_out + self.devices
        self.rate = [ici] * self._first_core + [round(known.on_chip_bytes_per_s)] * self.devices
        self.rate += [round(known.nic_bytes_per_s)] * (2 * self.devices)
        self.latency_ps = [hop] * self._first_core + [0] * self.devices
        self.latency_ps += [far] * self.devices + [0] * self.devices
        self.dead = {self.link_number(link) for link in faults.dead}
        for link, share in faults.slow.items():
            self.rate[self.link_number(link)] = max(1, round(ici * share))

    def coords(self, device: int) -> Coords:
        """Place of a device of the folded network."""
        chip, core = divmod(device, self.fold.cores)
        (sx, sy, sz), rest = self.fold.sizes, chip
        return Coords(
            rest // (sx * sy * sz), rest % sx, rest // sx % sy, rest // (sx * sy) % sz, core
        )

    def device(self, place: Coords) -> int:
        """Device of the folded network at a place; the inverse of `coords`."""
        sx, sy, sz = self.fold.sizes
        chip = ((place.slice * sz + place.z) * sy + place.y) * sx + place.x
        return chip * self.fold.cores + place.core

    def link_number(self, link: Link) -> int:
        """The number of a torus link."""
        place = Coords(link.slice, link.x, link.y, link.z, 0)
        chip = self.device(place) // self.fold.cores
        return chip * _PORTS + 2 * link.axis + (link.step < 0)

    def step(self, chip: int, axis: int, step: int) -> tuple[int, int] | None:
        """(link, chip behind it) one step along an axis; None at a border or a dead link."""
        link = chip * _PORTS + 2 * axis + (step < 0)
        size = self.fold.sizes[axis]
        below = math.prod(self.fold.sizes[:axis])
        place = chip // below % size
        far = place + step
        if not 0 <= far < size:
            if not self.fold.rings[axis]:
                return None
            far %= size
        return None if link in self.dead else (link, chip + (far - place) * below)

    def path(self, device: int, axis: int, step: int, hops: int) -> tuple[Path, int] | None:
        """(links, device behind them) `hops` steps along an axis; None where the way is closed."""
        chip, core = divmod(device, self.fold.cores)
        links = []
        for _ in range(hops):
            found = self.step(chip, axis, step)
            if found is None:
                return None
            links.append(found[0])
            chip = found[1]
        return tuple(links), chip * self.fold.cores + core

    def detour(self, source: int, target: int) -> Path:
        """The shortest path around dead links. Raises NetworkError where the target is cut off."""
        start, goal = source // self.fold.cores, target // self.fold.cores
        came: dict[int, tuple[int, int]] = {}
        waiting = deque([start])
        while waiting and goal not in came:
            chip = waiting.popleft()
            for port in range(_PORTS):
                found = self.step(chip, port // 2, 1 - 2 * (port % 2))
                if found is not None and found[1] not in came and found[1] != start:
                    came[found[1]] = (found[0], chip)
                    waiting.append(found[1])
        if goal not in came:
            raise NetworkError(
                f"[network] device {target} is cut off from device {source} by dead links; "
                "a collective over both cannot run"
            )
        links, chip = [], goal
        while chip != start:
            links.append(came[chip][0])
            chip = came[chip][1]
        return tuple(reversed(links))

    def to_other_core(self, device: int) -> Path:
        """The link from a core to the other core of its chip."""
        return (self._first_core + device,)

    def over_dcn(self, source: int, target: int) -> Path:
        """Over the source's share of its host's network cards and the target's share of its own."""
        return self._first_out + source, self._first_in + target

    def kind(self, link: int) -> str:
        """What a link belongs to: an axis of the torus, the cores of a chip, or the DCN."""
        if link < self._first_core:
            return "xyz"[link % _PORTS // 2]
        return "cores" if link < self._first_out else "dcn"

    def name(self, link: int) -> str:
        """A link number in words."""
        if link < self._first_core:
            place = self.coords(link // _PORTS * self.fold.cores)
            port = link % _PORTS
            way = f"{'+-'[port % 2]}{'xyz'[port // 2]}"
            return f"ici {way} of chip {place.x},{place.y},{place.z} of slice {place.slice}"
        if link < self._first_out:
            return f"between cores, from device {link - self._first_core}"
        out = link < self._first_in
        device = link - (self._first_out if out else self._first_in)
        return f"dcn {'out of' if out else 'into'} device {device}"
