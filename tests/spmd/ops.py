"""OpInfos on tensors that are split over four devices, compared with torch's CPU.

`python -m tests.spmd.ops NAME...` (all where none is given) prints what differs, a line each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TORCHTPU_TARGET", "cpu")

import torch
from torch.utils._pytree import tree_map

from tests.lowerings import opinfo
from torchtpu import spmd
from torchtpu.errors import TpuError

MESH = spmd.Mesh((2, 2), ("data", "tensor"))


def split(value: Any) -> Any:
    """Split a tensor along its first two dims of even size; what cannot be split stays whole."""
    if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
        return value
    axes = iter(MESH.names)
    spec = [next(axes, None) if n and n % 2 == 0 else None for n in value.shape]
    try:
        return spmd.shard(value, MESH, spec)
    except (TpuError, RuntimeError):  # a view of a larger storage, or no strided tensor
        return value


def _on_split(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*tree_map(split, args), **tree_map(split, kwargs))


def failures(names: list[str], samples: int) -> Iterator[str]:
    """Yield a line for each OpInfo that gives something else than on the CPU."""
    for name in names:
        try:
            for trial in opinfo.trials(name, torch.float32, samples, actual=_on_split):
                try:
                    trial()
                except opinfo.Rejected:
                    continue
        except Exception as error:
            yield f"{name}: {type(error).__name__}: {str(error)[:300]}"


def main() -> None:
    """Print what differs."""
    spmd.use(MESH)
    for line in failures(sys.argv[1:] or opinfo.names(), samples=2):
        sys.stdout.write(line.replace("\n", " ") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
