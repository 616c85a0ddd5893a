"""Registration of device tpu with torch: idempotent, quiet, and never half done."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from torchtpu import device as device_module
from torchtpu.backward_errors import take_pending
from torchtpu.errors import ConfigError, TpuError
from torchtpu.private import torch as private

_OURS = "_torchtpu_registered"


def autoload() -> None:
    """Entry point of torch.backends: register where the name is free; say so otherwise."""
    owner = _other_owner()
    if owner:
        import warnings

        warnings.warn(f"[torchtpu] not registered: {owner}", stacklevel=2)
        return
    register()


def register() -> None:
    """Make device "tpu" known to torch; TpuError where another package owns the dispatch key."""
    if getattr(torch, _OURS, False):
        return
    owner = _other_owner()
    if owner:
        raise TpuError(f"[torchtpu.register] {owner}")
    from torchtpu import backward_errors, device_methods, module_methods, stand_in, storage_methods
    from torchtpu.compiler import default
    from torchtpu.distributed import backend
    from torchtpu.eager import autocast, dispatch, modes
    from torchtpu.private.torch import setup_privateuse1

    setup_privateuse1("tpu", device_module.module(), _Hooks(), _Guard())
    dispatch.register()
    autocast.register()
    storage_methods.install()
    device_methods.install()
    device_module.guard_forks()
    module_methods.install()
    backward_errors.install()
    stand_in.install()
    default.install()
    backend.register()
    with contextlib.suppress(ConfigError):  # raised again at the first use of the device
        modes.set_mode(modes.from_environment())
    setattr(torch, _OURS, True)


def _other_owner() -> str:
    """Say who has PrivateUse1 where it is not free; empty where it is ours or free."""
    name = private.privateuse1_name()
    if getattr(torch, _OURS, False) or name == "privateuseone":
        return ""
    return (
        f"torch's device key PrivateUse1 already belongs to {name!r} (Google's torch_tpu or "
        "another backend that loads itself at `import torch`); uninstall one of the two, or set "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 and call torchtpu.register() yourself"
    )


class _Hooks(private.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, _device_index: int) -> bool:
        return True


_PRIVATE_USE_1 = private.DeviceType.PrivateUse1


class _Guard(private.DeviceGuard):
    def type_(self) -> Any:
        take_pending()
        return _PRIVATE_USE_1
