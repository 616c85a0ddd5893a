"""Lays a logical mesh (data x fsdp x tensor) on the torus, inner axes on whole axes of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from torchtpu.perf_model.network.topology import Topology, TopologyError

Devices = npt.NDArray[np.int64]


def lay_mesh(
    topology: Topology, sizes: Sequence[int], *, slice_sizes: Sequence[int] | None = None
) -> Devices:
    """Device numbers of a logical mesh: [*sizes], outermost (least traffic) axis first.

    From the innermost logical axis outwards, each takes the largest set of whole physical axes
    whose sizes multiply to its own, the order of jax's create_device_mesh for a torus. Where that
    fails the mesh is filled row-major in the order of device numbers (cores first, then x, y, z).
    slice_sizes says how many slices each axis spans; by default the outermost axes take them.
    Raises TopologyError where the sizes do not multiply to the number of devices.
    """
    if math.prod(sizes) != topology.devices or min(sizes, default=1) < 1:
        raise TopologyError(
            f"[mesh] {'x'.join(map(str, sizes))} on {topology.name}: expected "
            f"{topology.devices} devices, got {math.prod(sizes)}"
        )
    outer = _slice_sizes(topology, sizes, slice_sizes)
    inner = [size // part for size, part in zip(sizes, outer, strict=True)]
    one_slice = _lay_slice(topology, inner)
    offsets = np.arange(topology.slices).reshape(outer) * topology.devices_per_slice
    # [o1, 1, o2, 1, ...] + [1, i1, 1, i2, ...] -> [o1 * i1, o2 * i2, ...]
    wide = offsets.reshape([n for part in outer for n in (part, 1)])
    narrow = one_slice.reshape([n for part in inner for n in (1, part)])
    return np.asarray(wide + narrow, dtype=np.int64).reshape(tuple(sizes))


def _slice_sizes(
    topology: Topology, sizes: Sequence[int], given: Sequence[int] | None
) -> tuple[int, ...]:
    if given is None:
        left, found = topology.slices, []
        for size in sizes:
            found.append(math.gcd(size, left))
            left //= found[-1]
    else:
        left, found = topology.slices // max(1, math.prod(given)), list(given)
    fits = len(found) == len(sizes) and all(s % f == 0 for s, f in zip(sizes, found, strict=False))
    if left != 1 or math.prod(found) != topology.slices or not fits:
        raise TopologyError(
            f"[mesh] {'x'.join(map(str, sizes))}: its axes cannot take {topology.slices} slices, "
            f"got {tuple(found)} slices per axis"
        )
    return tuple(found)


def _lay_slice(topology: Topology, sizes: Sequence[int]) -> Devices:
    """The mesh of one slice: [*sizes]."""
    sx, sy, sz = topology.sizes
    numbers = np.arange(topology.devices_per_slice).reshape(sz, sy, sx, topology.cores)
    torus = numbers.transpose(2, 1, 0, 3)  # [z, y, x, core] -> [x, y, z, core]
    if topology.cores == 1:
        torus = torus[..., 0]
    order = _assign(torus.shape, sizes)
    if order is None:
        return numbers.reshape(tuple(sizes))
    return torus.transpose(order).reshape(tuple(sizes))


def _assign(physical: Sequence[int], sizes: Sequence[int]) -> list[int] | None:
    """Physical axes in the order in which the logical axes take them; None where they do not."""
    free = dict(enumerate(physical))
    taken: list[tuple[int, ...]] = []
    for size in reversed(sizes):
        axes = _axes_of(size, free)
        if axes is None and size > 1:
            return None
        taken.insert(0, axes or ())
        for axis in axes or ():
            del free[axis]
    order = [axis for axes in taken for axis in axes]
    return [*order, *free]  # what is left has size 1


def _axes_of(size: int, free: dict[int, int]) -> tuple[int, ...] | None:
    for count in range(len(free), 0, -1):
        for axes in itertools.combinations(sorted(free), count):
            if math.prod(free[axis] for axis in axes) == size:
                return axes
    return None
