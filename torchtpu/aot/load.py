"""torchtpu.load_exported: an exported directory as a function on this process's device."""

from __future__ import annotations

from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from torchtpu import dtypes, views
from torchtpu.aot import directory
from torchtpu.aot.directory import Manifest, Value
from torchtpu.compiler import plan
from torchtpu.compiler.graph import buffer_or_none
from torchtpu.errors import TpuError
from torchtpu.private.torch import pytree
from torchtpu.program import ArrayType, Node, Program, Ref
from torchtpu.tensor import factory, from_host


class Exported:
    """A program that torchtpu.export wrote, with its weights on the device.

    Call it as the module was called: with tensors of the same shapes and dtypes, on any device, and
    the same numbers. weights: by the names of the module; buffers that it changes are changed here.
    """

    def __init__(self, path: Path) -> None:
        self.manifest, weights, artifact = directory.read(path)
        self.weights = {name: from_host(value) for name, value in weights.items()}
        self._path = path
        self._arguments = pytree.treespec_loads(self.manifest.arguments)
        self._results = pytree.treespec_loads(self.manifest.results)
        self._plan = _plan(self.manifest, artifact)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; TypeError or ValueError for arguments that it was not made for."""
        given = self.weights | self._checked(args, kwargs)
        buffers = [buffer_or_none(given[v.name]) for v in self.manifest.inputs]
        try:
            made = iter(self._plan.run([], buffers))
        except ValueError as error:  # JAX's, of a program for other platforms
            raise TpuError(
                f"[load_exported] {self._path} was exported for {self.manifest.platforms}, which "
                f"torchtpu.export(..., platforms=...) chooses: {error}"
            ) from error
        fixed = self.manifest.constants
        leaves = range(self._results.num_leaves)
        return pytree.tree_unflatten(
            [fixed[n] if n in fixed else next(made) for n in leaves], self._results
        )

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The tensors among the arguments, by name and on the device."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if tree != self._arguments:
            raise TypeError(
                f"[load_exported] expected arguments of the structure {self._arguments}, got {tree}"
            )
        for value, leaf in zip(self.manifest.leaves, leaves, strict=True):
            expected, got = _described(value, self.manifest.numbers), _kind(leaf)
            if expected != got:
                raise ValueError(f"[load_exported] {value.name}: expected {expected}, got {got}")
        named = zip(self.manifest.leaves, leaves, strict=True)
        return {v.name: _whole(leaf) for v, leaf in named if v.kind == "argument"}


def _described(value: Value, numbers: dict[str, Any]) -> str:
    if value.kind == "number":
        return repr(numbers[value.name])
    return f"torch.{value.dtype} of shape {value.shape}"


def _kind(leaf: Any) -> str:
    is_tensor = isinstance(leaf, torch.Tensor)
    return f"{leaf.dtype} of shape {tuple(leaf.shape)}" if is_tensor else repr(leaf)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the device, all of a buffer in the order of its dims."""
    plain = tensor.detach().to("tpu").contiguous()
    is_whole = plain.storage_offset() == 0 and buffer_or_none(plain).natural is not None
    return plain if is_whole else plain.clone()


def load_exported(path: str | PathLike[str]) -> Exported:
    """Return what torchtpu.export wrote to a directory; TpuError for a directory that is none."""
    return Exported(Path(path))


def _plan(manifest: Manifest, artifact: bytes) -> plan.Plan:
    results = [v for v in manifest.outputs if v.kind == "result"]
    types = tuple(_type(v) for v in manifest.inputs)
    count = len(manifest.outputs)
    refs = tuple(Ref(n) for n in range(len(types)))
    node = Node("exported", partial(_call, artifact), refs, (), count)
    outputs = tuple(range(len(types), len(types) + count))
    names = [v.name for v in manifest.inputs]
    return plan.of(
        Program(types, (node,), outputs, label="exported"),
        [factory(v.shape, views.contiguous_strides(v.shape), _dtype(v)) for v in results],
        [names.index(v.name) for v in manifest.outputs if v.kind != "result"],
    )


def _dtype(value: Value) -> torch.dtype:
    found: torch.dtype = getattr(torch, value.dtype)
    return found


def _type(value: Value) -> ArrayType:
    return ArrayType(value.shape, dtypes.to_numpy(_dtype(value)))


def _call(artifact: bytes, *arrays: Any) -> Any:
    made = _deserialized(artifact).call(*arrays)
    return made if len(made) > 1 else made[0]


@lru_cache(maxsize=8)
def _deserialized(artifact: bytes) -> Any:
    from jax import export

    return export.deserialize(bytearray(artifact))
