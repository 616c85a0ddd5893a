"""What device tpu adds to or mends in torch.Tensor, torch.Generator and printing."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchtpu.errors import TpuError
from torchtpu.generator import Generator


def install() -> None:
    """Replace the few functions of torch that would read device memory, or that lack a hook."""
    torch.Generator = Generator  # type: ignore[misc,assignment]  # the C++ hook does not exist
    _print_on_host()
    _refuse_dlpack()
    _follow_matmul_precision()


def _print_on_host() -> None:
    """Format on the host: torch's formatter would compile a dozen programs for one print."""
    printing: Any = torch._tensor_str
    on_any_device = printing._tensor_str

    @functools.wraps(on_any_device)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        text: str = on_any_device(self.cpu() if self.device.type == "tpu" else self, indent)
        return text

    printing._tensor_str = tensor_str


def _refuse_dlpack() -> None:
    """A capsule would carry the address of a tpu storage, which nobody may read."""
    export = torch.Tensor.__dlpack__

    @functools.wraps(export)
    def dlpack(self: torch.Tensor, **kwargs: Any) -> Any:
        if self.device.type == "tpu":
            raise TpuError("[__dlpack__] device memory of tpu is not exported; use .cpu() first")
        return export(self, **kwargs)

    torch.Tensor.__dlpack__ = dlpack  # type: ignore[method-assign]


def _follow_matmul_precision() -> None:
    """torch.set_float32_matmul_precision decides how many bfloat16 passes a float32 matmul takes."""
    set_precision = torch.set_float32_matmul_precision

    @functools.wraps(set_precision)
    def set_float32_matmul_precision(precision: str) -> None:
        set_precision(precision)
        _precision_changed(precision)

    torch.set_float32_matmul_precision = set_float32_matmul_precision


def _precision_changed(precision: str) -> None:
    from torchtpu import device

    device.set_matmul_precision(precision)
