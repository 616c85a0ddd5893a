"""What device tpu adds to or mends in torch.Tensor, torch.Generator and printing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

from torchtpu.errors import TpuError
from torchtpu.generator import Generator
from torchtpu.private import torch as private

_KDL_CPU, _KDL_EXT_DEV = 1, 12  # DLDeviceType in dlpack.h


def install() -> None:
    """Replace the few functions of torch that would read device memory, or that lack a hook."""
    torch.Generator = Generator  # type: ignore[misc]  # the C++ hook does not exist
    _print_on_host()
    _refuse_dlpack()
    _serve_accelerator()
    _pin_nothing()
    _follow_matmul_precision()


def _print_on_host() -> None:
    """Format on the host: torch's formatter would compile a dozen programs for one print."""
    printing: Any = private.tensor_str
    on_any_device = printing._tensor_str

    @functools.wraps(on_any_device)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        text: str = on_any_device(self.cpu() if self.device.type == "tpu" else self, indent)
        return text

    printing._tensor_str = tensor_str


def _refuse_dlpack() -> None:
    """A capsule would carry an address that nobody may read; a copy on the host may leave."""
    export, device_of = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__

    @functools.wraps(export)
    def dlpack(self: torch.Tensor, **kwargs: Any) -> Any:
        if self.device.type != "tpu":
            return export(self, **kwargs)
        asked = kwargs.get("dl_device")
        if asked is None or asked[0] != _KDL_CPU or kwargs.get("copy") is False:
            raise TpuError("[__dlpack__] device memory of tpu is not exported; use .cpu() first")
        return export(self.cpu(), max_version=kwargs.get("max_version"))

    @functools.wraps(device_of)
    def dlpack_device(self: torch.Tensor) -> Any:
        return (_KDL_EXT_DEV, 0) if self.device.type == "tpu" else device_of(self)

    torch.Tensor.__dlpack__ = dlpack  # type: ignore[method-assign]
    torch.Tensor.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]
    for module, name in (
        (torch._C, "_to_dlpack"),
        (torch, "to_dlpack"),
        (torch.utils.dlpack, "to_dlpack"),
    ):
        setattr(module, name, _for_cpu(getattr(module, name)))


def _for_cpu(to_dlpack: Any) -> Any:
    @functools.wraps(to_dlpack)
    def to_capsule(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "tpu":
            return tensor.__dlpack__()  # raises
        return to_dlpack(tensor, *args, **kwargs)

    return to_capsule


def _serve_accelerator() -> None:
    """Answer what torch.accelerator asks C++ for, where no Python class can stand behind it."""
    from torchtpu import device, streams

    answers: dict[str, Callable[..., Any]] = {
        "emptyCache": device.empty_cache,
        "emptyHostCache": device.empty_cache,
        "getDeviceCapability": device.get_device_capability,
        "getDeviceStats": lambda _index: device.memory_by_pool(),
        "getMemoryInfo": device.mem_get_info,
        "getStream": streams.current_stream,
        "isAllocatorInitialized": device.is_initialized,
        "resetAccumulatedStats": lambda _index: None,
        "resetPeakStats": device.reset_peak_memory_stats,
        "setDeviceIndex": device.set_device,
        "setStream": streams.set_stream,
        "synchronizeDevice": device.synchronize,
    }
    for name, answer in answers.items():
        setattr(torch._C, f"_accelerator_{name}", answer)


def _pin_nothing() -> None:
    """Host memory needs no pinning: a copy to the device takes the bytes before it returns."""
    for cls in (torch.Tensor, torch.UntypedStorage):
        cls.pin_memory = _pinned(cls.pin_memory)  # type: ignore[method-assign]  # both have it


def _pinned(pin_memory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(pin_memory)
    def pin(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self if self.device.type == "cpu" else pin_memory(self, *args, **kwargs)

    return pin


def _follow_matmul_precision() -> None:
    """torch's float32 matmul precision decides how many bfloat16 passes a matmul takes."""
    set_precision = torch.set_float32_matmul_precision

    @functools.wraps(set_precision)
    def set_float32_matmul_precision(precision: str) -> None:
        set_precision(precision)
        _precision_changed(precision)

    torch.set_float32_matmul_precision = set_float32_matmul_precision


def _precision_changed(precision: str) -> None:
    from torchtpu import device

    device.set_matmul_precision(precision)
