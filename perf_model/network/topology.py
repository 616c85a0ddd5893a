"""A slice of TPUs, or several: the torus, its devices and their coordinates, machines and ranks."""

from __future__ import annotations

import functools
import itertools
import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.network.slices import (
    Shape,
    TopologyError,
    check,
    format_shape,
    is_product,
    legal_shapes,
    naming_hint,
    parse_product,
    parse_shape,
    rule_of,
    split_name,
)

__all__ = [
    "Coords",
    "Topology",
    "TopologyError",
    "from_name",
    "legal_shapes",
    "load",
    "naming_hint",
]
_VM_BLOCK = (2, 2, 1)  # chips of one machine, as libtpu numbers processes


class Coords(NamedTuple):
    """Where a device is: slice, position of its chip in the torus, core of the chip."""

    slice: int
    x: int
    y: int
    z: int
    core: int


@dataclass(frozen=True, kw_only=True)
class Topology:
    """`slices` equal slices of `shape` chips each. A device is what one process drives.

    Device numbers are libtpu's: core fastest, then x, y, z, then slice. `sizes` and `rings` are
    always three long; `shape` and `wraps` have the dimensions of the generation's torus.
    """

    chip: Chip = field(hash=False)
    shape: Shape
    wraps: tuple[bool, ...]
    twisted: bool = False
    slices: int = 1

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Chips of a slice along x, y, z."""
        x, y, z = (*self.shape, 1)[:3]
        return x, y, z

    @functools.cached_property
    def rings(self) -> tuple[bool, bool, bool]:
        """Whether x, y, z wrap around."""
        x, y, z = (*self.wraps, False)[:3]
        return x, y, z

    @functools.cached_property
    def cores(self) -> int:
        """Devices per chip."""
        return self.chip.devices_per_chip

    @functools.cached_property
    def chips_per_slice(self) -> int:
        """Chips of one slice."""
        return math.prod(self.shape)

    @functools.cached_property
    def devices_per_slice(self) -> int:
        """Devices of one slice."""
        return self.chips_per_slice * self.cores

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.slices * self.chips_per_slice

    @property
    def devices(self) -> int:
        """Devices of all slices."""
        return self.slices * self.devices_per_slice

    @functools.cached_property
    def chips_per_host(self) -> int:
        """Chips that share the network cards of one host machine."""
        return min(int(self.chip.value("ici.chips_per_host")), self.chips_per_slice)

    @property
    def hosts(self) -> int:
        """Host machines of all slices; on v5e and v6e one holds two virtual machines."""
        return self.slices * math.ceil(self.chips_per_slice / self.chips_per_host)

    @property
    def name(self) -> str:
        """The name under which `from_name` finds it, with the slices in front: 2xv6e:16x16."""
        twist = "_twisted" if self.twisted else ""
        many = f"{self.slices}x" if self.slices > 1 else ""
        return f"{many}{self.chip.name}:{format_shape(self.shape)}{twist}"

    def coords(self, device: int) -> Coords:
        """The place of a device number. Raises TopologyError for a number out of range."""
        if not 0 <= device < self.devices:
            raise TopologyError(
                f"[topology] {self.name}: no device {device}, expected 0 to {self.devices - 1}"
            )
        chip, core = divmod(device, self.cores)
        (sx, sy, _), rest = self.sizes, chip % self.chips_per_slice
        return Coords(
            chip // self.chips_per_slice, rest % sx, rest // sx % sy, rest // (sx * sy), core
        )

    def device(self, coords: Coords) -> int:
        """The device number of a place; the inverse of `coords`."""
        sx, sy, sz = self.sizes
        chip = ((coords.slice * sz + coords.z) * sy + coords.y) * sx + coords.x
        return chip * self.cores + coords.core

    @functools.cached_property
    def rank_order(self) -> tuple[int, ...]:
        """Device number of each rank: machine by machine (2x2 chips each), as jax.devices()."""
        blocks = [min(size, block) for size, block in zip(self.sizes, _VM_BLOCK, strict=True)]
        steps = [range(0, s, b) for s, b in zip(self.sizes, blocks, strict=True)]
        inner = list(itertools.product(*(range(b) for b in reversed(blocks)), range(self.cores)))
        order = []
        for part in range(self.slices):
            for z, y, x in itertools.product(*reversed(steps)):
                for dz, dy, dx, core in inner:
                    order.append(self.device(Coords(part, x + dx, y + dy, z + dz, core)))
        return tuple(order)


def load(chip: Chip, shape: str, slices: int = 1) -> Topology:
    """`slices` slices of a chip. `shape` is "16x16", "4x4x8", "4x4x8_twisted" or a product name.

    Raises TopologyError, which lists the slices of the chip and says the rule.
    """
    if slices < 1:
        raise TopologyError(f"[topology] expected at least one slice, got {slices}")
    rule = rule_of(chip)
    text = shape.strip().lower()
    if is_product(text):
        other, sizes = parse_product(text)
        if other is not chip:
            raise TopologyError(f"[topology] {shape} is a slice of {other.name}, not {chip.name}")
        text = format_shape(sizes)
    twisted = text.endswith("_twisted")
    sizes = check(chip, parse_shape(text.removesuffix("_twisted")), twisted=twisted)
    return Topology(chip=chip, shape=sizes, wraps=rule.wraps(sizes), twisted=twisted, slices=slices)


def from_name(name: str, slices: int = 1) -> Topology:
    """The topology of "v6e:16x16" or of a product name such as "v6e-256" or "tpu7x-128" (cores).

    "2xv6e-256" stands for two slices. `naming_hint` says what the number of a product counts.
    Raises TopologyError, torchtpu.perf_model.chip.UnknownChip.
    """
    several = re.fullmatch(r"\s*(\d+)\s*x\s*([A-Za-z].*)", name)
    if several is not None:
        return from_name(several.group(2), slices * int(several.group(1)))
    parts = split_name(name.strip())
    if parts is not None:
        return load(chips.load(parts[0]), parts[1], slices)
    chip, shape = parse_product(name)
    return load(chip, format_shape(shape), slices)
