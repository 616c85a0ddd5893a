"""The module `torch.tpu`: device, memory, seed and mode functions under torch_tpu's names."""

from __future__ import annotations

import sys
import types

import torch


def module() -> types.ModuleType:
    """Return this module, as `torch.tpu`."""
    return sys.modules[__name__]


def is_available() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def manual_seed_all(seed: int) -> None:
    from torchtpu.generator import default_generator

    default_generator().manual_seed(seed)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]
