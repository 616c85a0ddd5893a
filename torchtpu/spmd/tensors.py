"""How tensors lie on a mesh: shard, ask, and fix it inside programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from torchtpu import executor, sharding
from torchtpu.eager import capture, modes
from torchtpu.eager.sharding import constraint, spelled
from torchtpu.errors import TpuError, did_you_mean
from torchtpu.program import Node, Program, Ref
from torchtpu.spmd.mesh import Axes, Mesh, PartitionSpec, checked, current_mesh
from torchtpu.storage import Buffer, buffer_of, launch_lock, physical_layout
from torchtpu.targets import Spec
from torchtpu.tensor import factory, host_array

_Module = TypeVar("_Module", bound=torch.nn.Module)


def shard(tensor: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> torch.Tensor:
    """Split a tensor over the devices of the mesh; return it.

    spec: by dim, the axis that it is split over, several, or None; missing dims are not split, and
    what is not split is on all devices. A tensor on the device is moved where it is, views of it
    too, and keeps that sharding when it is written to. One on the CPU is copied to the device,
    each part to where it belongs. TpuError for what the mesh does not split evenly, and for views
    that are not all of their storage.
    """
    inner = checked(mesh, "spmd.shard").inner(spec, tensor.shape, "spmd.shard")
    target = executor.current().target
    if tensor.device.type == "cpu":
        value = tensor.detach().contiguous()
        make = factory(tuple(value.shape), tuple(value.stride()), value.dtype)
        buffer = Buffer(make.layout)
        buffer.array = target.put(host_array(value), inner)
        return make(buffer).requires_grad_(tensor.requires_grad)
    buffer, wanted = _whole(tensor, inner, "spmd.shard")
    modes.current.flush()  # what is recorded may read it as it lies now
    with launch_lock:
        if type(buffer.array) is capture.Captured:
            raise TpuError(
                "[spmd.shard] a tensor cannot be moved inside a program that is being made; "
                "spmd.with_sharding_constraint says how a value of it lies"
            )
        if buffer.array is None and not buffer.freed:
            zeros = np.zeros(buffer.layout.shape, buffer.layout.type.dtype)
            buffer.array = target.put(zeros, wanted)
        elif _spec(buffer) != wanted:
            node = Node("shard", sharding.constrained, (Ref(0), wanted), (), 1)
            program = Program((buffer.layout.type,), (node,), (1,))
            (buffer.array,) = executor.current().executable(program).run([buffer.value()])
            buffer.shared = False
    return tensor


mark_sharding = shard  # torch_xla's name


def shard_module(module: _Module, mesh: Mesh, rules: Mapping[str, PartitionSpec]) -> _Module:
    """Split the parameters and buffers of a module on the device; return the module.

    rules: specs by regular expressions that match whole names ("blocks.*.up.weight" as
    r"blocks\\.\\d+\\.up\\.weight"); the first that matches counts, and what none matches stays on
    all devices. TpuError for a rule that matches nothing.
    """
    tensors = dict([*module.named_parameters(), *module.named_buffers()])
    found: dict[str, PartitionSpec] = {}
    unused = dict.fromkeys(rules)
    for name, tensor in tensors.items():
        pattern = next((p for p in rules if re.fullmatch(p, name)), None)
        if pattern is None:
            continue
        unused.pop(pattern, None)
        if tensor.device.type != "tpu":
            raise TpuError(
                f"[spmd.shard_module] expected {name} on tpu, got {tensor.device}: .to('tpu') first"
            )
        found[name] = rules[pattern]
    if unused:
        first = next(iter(unused))
        raise TpuError(
            f"[spmd.shard_module] no parameter or buffer is called {first!r}; "
            f"{did_you_mean(first, list(tensors))}"
        )
    for name, spec in found.items():
        try:
            shard(tensors[name], mesh, spec)
        except TpuError as error:
            error.add_note(f"[torchtpu] for {name}")
            raise
    return module


def sharding_of(tensor: torch.Tensor) -> tuple[Axes, ...]:
    """Return how a tensor on the device lies on the mesh: by dim an axis, several, or None.

    What is recorded for it is computed first. TpuError for a view that is not all of its storage.
    """
    mesh = current_mesh()
    if mesh is None:
        raise TpuError("[spmd.sharding_of] this process has one device: call spmd.use(mesh) first")
    buffer, order = _placed(tensor, "spmd.sharding_of")
    buffer.value()
    spec = _spec(buffer)
    by_dim = dict(zip(order, spec, strict=False))
    return mesh.outer(tuple(by_dim.get(d, ()) for d in range(tensor.dim())), tensor.dim())


def with_sharding_constraint(tensor: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> torch.Tensor:
    """Return the tensor, lying as the spec says: for values inside a program, compiled ones too.

    Its gradient lies so as well. Tensors of other devices are returned as they are.
    """
    if tensor.device.type != "tpu":
        return tensor
    inner = checked(mesh, "spmd.with_sharding_constraint").inner(
        spec, tensor.shape, "spmd.with_sharding_constraint"
    )
    return constraint(tensor, spelled(inner))


def _placed(tensor: torch.Tensor, op: str) -> tuple[Buffer, tuple[int, ...]]:
    """Return a tensor's buffer, and its dims in the order in which the buffer has them."""
    if tensor.device.type != "tpu":
        raise TpuError(f"[{op}] expected a tensor on tpu, got one on {tensor.device}")
    buffer = buffer_of(tensor.untyped_storage())
    layout, order = physical_layout(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
    if order is None or layout is not buffer.layout or tensor.storage_offset():
        raise TpuError(
            f"[{op}] expected a tensor that is all of its storage, got a view of shape "
            f"{tuple(tensor.shape)} into {buffer.layout.shape}: take the tensor that it views, or "
            "a clone"
        )
    return buffer, order


def _whole(tensor: torch.Tensor, spec: Spec, op: str) -> tuple[Buffer, Spec]:
    """Return a tensor's buffer, and the spec in the order of the buffer's dims."""
    buffer, order = _placed(tensor, op)
    dims = [spec[d] if d < len(spec) else () for d in order]
    while dims and not dims[-1]:
        dims.pop()
    return buffer, tuple(dims)


def _spec(buffer: Buffer) -> Any:
    mesh = executor.current().mesh
    assert mesh is not None
    return mesh.spec(buffer.value()) or ()
