"""The devices of one process as a mesh: how arrays lie on them, in JAX's words and in ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtpu.private import jax as private

Axes = tuple[tuple[str, int], ...]  # names and sizes, the slowest first
Spec = tuple[tuple[str, ...], ...]  # by dim: the axes that it is split over; missing dims: none
_UNWRITTEN = "unwritten"


class DeviceMesh:
    """Devices along axes, and the shardings of arrays on them.

    An array that nothing was written to yet is on all devices and has the spec None: unlike `()`,
    no choice of anybody's, so that what is computed from it may lie in any way.
    """

    def __init__(self, devices: Sequence[Any], axes: Axes) -> None:
        import jax
        from jax.sharding import AxisType

        sharding: Any = jax.sharding  # untyped there
        self.axes = axes
        self.devices = tuple(devices)
        of = np.array(self.devices, dtype=object)
        names, sizes = (tuple(column) for column in zip(*axes, strict=True))
        kinds = (AxisType.Auto,) * len(axes)
        self.mesh: Any = sharding.Mesh(of.reshape(sizes), names, axis_types=kinds)
        other = sharding.Mesh(of, (_UNWRITTEN,), axis_types=kinds[:1])
        self._named, self._partitioned = sharding.NamedSharding, sharding.PartitionSpec
        self._unwritten = self._named(other, self._partitioned())
        self._known: dict[Spec | None, Any] = {None: self._unwritten}

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)

    def sharding(self, spec: Spec | None) -> Any:
        """Return JAX's sharding of a spec; the same object for the same spec."""
        found = self._known.get(spec)
        if found is None:
            assert spec is not None
            found = self._known[spec] = self._named(self.mesh, self._partitioned(*spec))
        return found

    def given(self, spec: Spec | None) -> Any:
        """Return the sharding that a program is compiled for where an input has this spec."""
        return self.sharding(spec or ())

    def spec(self, array: Any) -> Spec | None:
        """Return how an array lies on the devices."""
        sharding = array.sharding
        return None if sharding is self._unwritten else _plain(sharding.spec)

    def bytes_of_a_device(self, array: Any) -> int:
        """Return the memory that an array takes on each device."""
        shape = array.sharding.shard_shape(array.shape)
        return int(np.prod(shape, dtype=np.int64)) * int(array.dtype.itemsize)

    def shards(self, value: np.ndarray[Any, Any], spec: Spec | None) -> list[Any]:
        """Return what each device gets of a host array."""
        if not spec:
            return [value] * len(self.devices)
        places = self.sharding(spec).devices_indices_map(value.shape)
        return [np.ascontiguousarray(value[places[device]]) for device in self.devices]

    def outputs(self, loaded: Any, count: int) -> list[Spec]:
        """Return the specs that XLA has chosen for the `count` results of a loaded executable."""
        if len(self.devices) == 1:
            return [()] * count  # nothing is partitioned
        found = [_plain(spec) for spec in private.output_specs(loaded, self.mesh)]
        if len(found) == 1:  # XLA says once what is true of all
            found *= count
        assert len(found) == count, (found, count)
        return found


def _plain(spec: Sequence[Any]) -> Spec:
    dims = [(d,) if isinstance(d, str) else tuple(d or ()) for d in spec]
    while dims and not dims[-1]:
        dims.pop()
    return tuple(dims)
