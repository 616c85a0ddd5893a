"""The error of ops whose result's shape depends on values, where buffers have none."""

from __future__ import annotations

import torch

from torchtpu import executor
from torchtpu.eager import blame
from torchtpu.errors import TpuError
from torchtpu.storage import buffer_of


class DataDependentShapeError(TpuError):
    """The shape of a result depends on values that do not exist."""


def needs_values(op: str, source: torch.Tensor | None = None) -> None:
    """Raise DataDependentShapeError on a device of abstract buffers; nothing on any other.

    source: the tensor that is read, where that is one which may have come from the host as it is.
    """
    if not executor.current().target.is_abstract:
        return
    if source is not None:
        held = buffer_of(source.untyped_storage()).array
        if getattr(held, "value", None) is not None:
            return
    line = blame.user_line()
    raise DataDependentShapeError(
        f"[{op}] the shape of its result depends on values{f' at {line}' if line else ''}, and "
        "abstract buffers have none (TORCHTPU_SIM_NUMERICS=0, torchtpu-perf estimate); use ops of "
        "fixed shapes: torch.where instead of an index by a mask, a padded size, output_size=, "
        "lengths on the CPU"
    )
