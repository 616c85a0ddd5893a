"""One program over all devices of a process: a mesh, shardings of tensors, XLA's partitioner."""

from torchtpu.spmd.mesh import Mesh, PartitionSpec, current_mesh, use
from torchtpu.spmd.tensors import (
    mark_sharding,
    shard,
    shard_module,
    sharding_of,
    with_sharding_constraint,
)

__all__ = [
    "Mesh",
    "PartitionSpec",
    "current_mesh",
    "mark_sharding",
    "shard",
    "shard_module",
    "sharding_of",
    "use",
    "with_sharding_constraint",
]
