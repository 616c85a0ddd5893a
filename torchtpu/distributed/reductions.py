"""What ReduceOp asks for, in the words of the lowerings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist

from torchtpu.errors import TpuError

NAMES = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
    dist.ReduceOp.PREMUL_SUM: "sum",
}
_BITS = ("band", "bor", "bxor")


@dataclass(frozen=True)
class Reduction:
    """A reduction: its name, and what tensors are multiplied by before it."""

    name: str
    factor: Any = None

    @classmethod
    def of(cls, opts: Any, tensors: Sequence[torch.Tensor]) -> Reduction:
        """Return what options ask for; TpuError where the tensors' dtypes have no such thing."""
        wanted: Any = getattr(opts, "reduceOp", None) or dist.ReduceOp(dist.ReduceOp.SUM)
        kind = getattr(wanted, "op", wanted)
        name = NAMES.get(kind, "")
        if not name:
            raise TpuError(
                f"[tpu_dist] expected one of {sorted(set(NAMES.values()))}, got {wanted}"
            )
        for dtype in {t.dtype for t in tensors}:
            if name in _BITS and (dtype.is_floating_point or dtype.is_complex):
                raise RuntimeError(f"Cannot use ReduceOp.{name.upper()} with non-integral dtype")
            if name in ("max", "min", "product") and dtype.is_complex:
                raise RuntimeError(f"all_reduce does not support {name} on complex tensors")
        is_scaled = kind == dist.ReduceOp.PREMUL_SUM
        return cls(name, cast("tuple[Any, Any]", wanted.__getstate__())[1] if is_scaled else None)

    def prepared(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors times the factor, if there is one."""
        if self.factor is None:
            return list(tensors)
        return [t.detach() * self.factor for t in tensors]
