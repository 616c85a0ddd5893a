"""How the decoder is laid out over ranks: data, fsdp, expert and tensor axes of one mesh."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from examples.llm_config import Config, ModelError
from examples.llm_model import Block, Decoder
from examples.llm_moe import Moe

BACKENDS = {"tpu": "tpu_dist", "cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Ranks along each axis, outermost first; slices multiply the data axis.

    data: replicas, gradients are averaged. fsdp: parameters are sharded (FSDP2). expert: experts
    are spread, and all else is sharded as by fsdp. tensor: matrices are split, activations between
    them by sequence.
    """

    slices: int = 1
    data: int = 1
    fsdp: int = 1
    expert: int = 1
    tensor: int = 1

    @property
    def replicas(self) -> int:
        """Copies of the parameters."""
        return self.slices * self.data

    @property
    def batch_ranks(self) -> int:
        """Ranks that see different tokens."""
        return self.replicas * self.fsdp * self.expert

    @property
    def world(self) -> int:
        """All ranks."""
        return self.batch_ranks * self.tensor


def axes_for(world: int, *, slices: int, data: int, fsdp: int, expert: int, tensor: int) -> Axes:
    """Axes of `world` ranks; fsdp = 0 takes what the others leave. Raises ModelError."""
    rest = slices * data * expert * tensor
    fsdp = fsdp or max(1, world // rest)
    axes = Axes(slices=slices, data=data, fsdp=fsdp, expert=expert, tensor=tensor)
    if axes.world != world:
        raise ModelError(
            f"[mesh] slices {slices} x data {data} x fsdp {fsdp} x expert {expert} x tensor "
            f"{tensor} = {axes.world} ranks, but WORLD_SIZE is {world}"
        )
    return axes


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The ranks, seen twice: experts are spread over expert x tensor, all else is not."""

    axes: Axes
    dense: DeviceMesh  # data, shard (fsdp x expert), tensor
    sparse: DeviceMesh  # data, fsdp, expert (expert x tensor)

    @property
    def batch_rank(self) -> int:
        """Which part of the batch this rank sees."""
        data, shard, _ = self.dense.get_coordinate() or [0, 0, 0]
        return int(data) * self.axes.fsdp * self.axes.expert + int(shard)

    @property
    def expert_rank(self) -> int:
        """Which part of the experts this rank holds."""
        return int(self.sparse["expert"].get_local_rank())


@contextlib.contextmanager
def joined(device: str) -> Iterator[int]:
    """Join the ranks that torchrun has started, with the device's backend; how many, 0 if none."""
    world = int(os.environ.get("WORLD_SIZE", "0")) if "RANK" in os.environ else 0
    if not world:
        yield 0
        return
    dist.init_process_group(BACKENDS.get(device.partition(":")[0], ""))
    try:
        yield world
    finally:
        dist.destroy_process_group()


def make_mesh(device: torch.device, axes: Axes) -> Mesh:
    """Meshes of the running process group."""
    a = axes
    dense = (a.replicas, a.fsdp * a.expert, a.tensor)
    sparse = (a.replicas, a.fsdp, a.expert * a.tensor)
    return Mesh(
        axes=axes,
        dense=init_device_mesh(device.type, dense, mesh_dim_names=("data", "shard", "tensor")),
        sparse=init_device_mesh(device.type, sparse, mesh_dim_names=("data", "fsdp", "expert")),
    )


def distribute(model: Decoder, mesh: Mesh, *, reduce_dtype: str, reshard: bool = True) -> Decoder:
    """Split `model`, whose parameters may be on meta, over the mesh. Raises ModelError."""
    if mesh.axes.tensor > 1:
        _split_tensors(model, mesh.dense["tensor"])
    config = model.config
    policy = MixedPrecisionPolicy(
        param_dtype=getattr(torch, config.compute_dtype),
        reduce_dtype=getattr(torch, reduce_dtype),
        cast_forward_inputs=False,
    )
    options: dict[str, Any] = {"mp_policy": policy, "reshard_after_forward": reshard}
    over = _axes_of(mesh.dense, mesh.axes.replicas, "shard")
    for block in model.layers:
        if isinstance(block.mlp, Moe) and mesh.sparse["expert"].size() > 1:
            _spread_experts(block.mlp, mesh, options)
        fully_shard(block, mesh=over, shard_placement_fn=_even_dim(over), **options)
    if not config.tied:
        fully_shard(model.embed, mesh=over, **options)
        fully_shard(model.head, mesh=over, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=over, mp_policy=policy)
    return model


def _axes_of(mesh: DeviceMesh, replicas: int, shard: str) -> DeviceMesh:
    """What FSDP takes: the axis to shard, with the axis to replicate before it where it has any."""
    return mesh["data", shard] if replicas > 1 else mesh[shard]


def _spread_experts(moe: Moe, mesh: Mesh, options: dict[str, Any]) -> None:
    """FSDP of the experts over the ranks that hold the same ones."""
    moe.group = mesh.sparse.get_group("expert")
    over = _axes_of(mesh.sparse, mesh.axes.replicas, "fsdp")
    sharded = fully_shard(moe.experts, mesh=over, shard_placement_fn=_even_dim(over), **options)
    # a gradient has come through every rank's tokens, but is averaged over `over`
    sharded.set_gradient_divide_factor(float(mesh.axes.batch_ranks))


def _even_dim(mesh: DeviceMesh) -> Callable[[nn.Parameter], Shard | None]:
    """Cut stacks of fewer experts than ranks along a dim of which every rank gets as much."""
    ranks = mesh.size(mesh.ndim - 1)

    def placement(parameter: nn.Parameter) -> Shard | None:
        even = (d for d, size in enumerate(parameter.shape) if size % ranks == 0)
        return Shard(next(even, 0)) if parameter.ndim == 3 else None

    return placement


def _split_tensors(model: Decoder, mesh: DeviceMesh) -> None:
    """Tensor and sequence parallelism of every layer."""
    _check_tensor_axis(model.config, mesh.size())
    sequence = Shard(1)
    outer: dict[str, ParallelStyle] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=sequence),
        "head.norm": SequenceParallel(),
        "head.out": ColwiseParallel(
            input_layouts=sequence, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    parallelize_module(model, mesh, outer)
    model.tie()
    for block in model.layers:
        parallelize_module(block, mesh, _block_plan(block))


def _block_plan(block: Block) -> dict[str, ParallelStyle]:
    sequence, whole = Shard(1), Replicate()
    plan: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(sequence, None), desired_input_layouts=(whole, None)
        ),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=sequence),
        "attention.q_norm": SequenceParallel(sequence_dim=1, use_local_output=True),
        "attention.k_norm": SequenceParallel(sequence_dim=1, use_local_output=True),
        "mlp_norm": SequenceParallel(),
        "attention_post": SequenceParallel(use_local_output=True),
        "mlp_post": SequenceParallel(use_local_output=True),
    }
    prefix = "mlp"
    if isinstance(block.mlp, Moe):
        plan["mlp_norm"] = SequenceParallel(use_local_output=True)
        plan["mlp.router"] = SequenceParallel(use_local_output=True)
        prefix = "mlp.shared"
    plan |= {
        prefix: PrepareModuleInput(input_layouts=(sequence,), desired_input_layouts=(whole,)),
        f"{prefix}.gate": ColwiseParallel(),
        f"{prefix}.up": ColwiseParallel(),
        f"{prefix}.down": RowwiseParallel(output_layouts=sequence),
    }
    return {name: style for name, style in plan.items() if _has(block, name)}


def _has(module: nn.Module, name: str) -> bool:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None


def _check_tensor_axis(config: Config, ranks: int) -> None:
    """Say what the tensor axis cannot split. Raises ModelError."""
    for what, count in (("kv_heads", config.kv_heads), ("heads", config.heads)):
        if count % ranks:
            raise ModelError(f"[mesh] tensor={ranks} does not divide {what}={count}")
    missing = {
        "latent attention": config.kv_rank > 0,
        "quantized products": config.quantize != "none",
        "learned positions": config.learned_positions > 0,
        "a parallel block": config.parallel_block,
        "one-hot embeddings": config.embedding == "onehot",
    }
    if absent := [name for name, wanted in missing.items() if wanted]:
        raise ModelError(f"[mesh] the tensor axis is not written for {', '.join(absent)}")


def loss_context(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """Cross entropy over logits that are split by vocabulary, where they are."""
    if mesh is not None and mesh.axes.tensor > 1:
        return loss_parallel()
    return contextlib.nullcontext()
