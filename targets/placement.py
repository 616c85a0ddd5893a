"""Where the devices of a world are, and which of them are to be neighbours in a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Place:
    """A device: its number, chip (x, y, z) of a slice, core of the chip, and who drives it."""

    id: int
    coords: tuple[int, ...]
    core_on_chip: int
    slice_index: int
    process_index: int
    device_kind: str  # as JAX calls the generation: "TPU v6 lite"
    platform: str = "tpu"


def places(devices: Sequence[Any]) -> list[Place]:
    """Return the places of a client's devices, in their order; none where they have none."""
    if not all(hasattr(d, "coords") and hasattr(d, "core_on_chip") for d in devices):
        return []
    return [
        Place(
            id=d.id,
            coords=tuple(d.coords),
            core_on_chip=d.core_on_chip,
            slice_index=getattr(d, "slice_index", 0),
            process_index=d.process_index,
            device_kind=d.device_kind,
        )
        for d in devices
    ]


def arranged(
    devices: Sequence[Place],
    shape: Sequence[int],
    outer: Sequence[int],
    *,
    process_is_granule: bool,
    allow_split_physical_axes: bool,
    contiguous_submeshes: bool,
) -> Any:
    """Return the indices of devices as nested lists of `shape`, times `outer` between slices.

    outer: () for a single slice. Raises what jax.experimental.mesh_utils does for a shape that
    the devices do not fill.
    """
    from jax.experimental import mesh_utils

    index = {device: number for number, device in enumerate(devices)}
    ordered = sorted(devices, key=lambda d: d.id)
    if outer:
        made = mesh_utils.create_hybrid_device_mesh(
            shape,
            outer,
            devices=ordered,
            process_is_granule=process_is_granule,
            allow_split_physical_axes=allow_split_physical_axes,
        )
    else:
        made = mesh_utils.create_device_mesh(
            shape,
            devices=ordered,
            contiguous_submeshes=contiguous_submeshes,
            allow_split_physical_axes=allow_split_physical_axes,
        )
    return _indices(made.tolist(), index)


def _indices(made: Any, index: dict[Place, int]) -> Any:
    return [_indices(m, index) for m in made] if isinstance(made, list) else index[made]
