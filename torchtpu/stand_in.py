"""`torch_tpu` for programs written against Google's package, where that is not installed."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

_NAME = "torch_tpu"


def install() -> None:
    """Let `import torch_tpu` find a small stand-in; Google's own package always goes first."""
    if not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.append(_Finder())


def tpu_device(index: int = 0) -> torch.device:
    """Return the TPU device, as `torch_tpu.api.tpu_device()` did."""
    return torch.device("tpu", index)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch_tpu and torch_tpu.api after every other finder has failed to."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in (_NAME, f"{_NAME}.api"):
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(), is_package=fullname == _NAME)


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        text = (
            "Stand-in for Google's torch_tpu, made by torchtpu; the device is torch.device('tpu')."
        )
        return types.ModuleType(spec.name, text)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == _NAME:
            api = importlib.import_module(f"{_NAME}.api")
            module.api = api  # type: ignore[attr-defined]
        else:
            module.tpu_device = tpu_device  # type: ignore[attr-defined]
