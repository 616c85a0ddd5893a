"""Which rank stands where in a mesh, so that neighbours in it are neighbours in the slice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from torchtpu import executor, targets
from torchtpu.errors import TpuError, did_you_mean

_KINDS = ("single_slice", "multi_slice")


def topology_aware_mesh(
    mesh_shape: Sequence[int],
    *,
    topology: str = "single_slice",
    dcn_mesh_shape: Sequence[int] | None = None,
    process_is_granule: bool = False,
    allow_split_physical_axes: bool = False,
    contiguous_submeshes: bool = False,
) -> torch.Tensor:
    """Return int64[mesh_shape] of ranks for `DeviceMesh("tpu", mesh=...)`, the same on all ranks.

    mesh_shape: sizes of the axes, the one with most traffic last. topology: "single_slice", or
    "multi_slice", where `dcn_mesh_shape` are the sizes of the axes between slices (between hosts
    with `process_is_granule`) and the result has the shape mesh_shape * dcn_mesh_shape, axis by
    axis. The other options are those of jax.experimental.mesh_utils, which arranges the devices
    by their places in the torus; where they have none (target cpu), ranks stay in order.
    TpuError without a process group, and for shapes that the devices do not fill.
    """
    if not dist.is_initialized():
        raise TpuError(
            "[topology_aware_mesh] PyTorch distributed process group must be initialized before: "
            'call init_process_group("tpu_dist")'
        )
    if topology not in _KINDS:
        raise TpuError(
            f"[topology_aware_mesh] unknown topology {topology!r}; {did_you_mean(topology, _KINDS)}"
        )
    shape, outer = tuple(mesh_shape), tuple(dcn_mesh_shape or ())
    is_multi = topology == "multi_slice"
    if is_multi != bool(outer) or (outer and len(outer) != len(shape)):
        raise TpuError(
            "[topology_aware_mesh] expected dcn_mesh_shape with as many axes as mesh_shape for "
            f"topology='multi_slice', and for it alone, got {outer or None} for {topology!r}"
        )
    whole = tuple(a * b for a, b in zip(shape, outer or (1,) * len(shape), strict=True))
    world = dist.get_world_size()
    if math.prod(whole) != world or min(whole, default=1) < 1:
        raise TpuError(
            f"[topology_aware_mesh] expected sizes whose product is the {world} ranks, got {whole}"
        )
    places = executor.current().target.places()
    if not places:
        return torch.arange(world).reshape(whole)
    try:
        ranks = targets.arranged(
            places,
            shape,
            outer,
            process_is_granule=process_is_granule,
            allow_split_physical_axes=allow_split_physical_axes,
            contiguous_submeshes=contiguous_submeshes,
        )
    except (ValueError, NotImplementedError, AssertionError) as error:  # in JAX's words
        raise TpuError(f"[topology_aware_mesh] {error}") from error
    return torch.tensor(ranks, dtype=torch.int64)
