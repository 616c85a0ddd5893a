"""Ops whose result shape depends on data: they read a count on the host, then run a bucketed program."""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.eager.view_ops import kernel


def _dispatch() -> Any:
    from torchtpu.eager import dispatch

    return dispatch.derived


@kernel("aten::copy_")
def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """self[...] = src, between any two devices and dtypes, with broadcasting."""
    if self.device.type == "tpu" and src.device.type == "tpu":
        _dispatch()["aten::copy_"](self, src)
        return self
    torch.ops.aten._copy_from.default(src, self, non_blocking)
    return self
