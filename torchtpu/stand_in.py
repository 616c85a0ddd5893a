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
# Modules under torch_tpu's names and the ones of ours that they are.
_SAME = {
    "torch.tpu.distributed": "torchtpu.distributed.api",
    "torch.tpu.distributed.environment": "torchtpu.distributed.launch",
    "torch.tpu.optimizers": "torchtpu.optimizers",
    "torch_tpu._internal.compile": "torchtpu.compiler.backend",
}
_PACKAGES = (_NAME, f"{_NAME}._internal")
_MODULES = (*_PACKAGES, f"{_NAME}.api", *_SAME)


def install() -> None:
    """Let `import torch_tpu` find a small stand-in; Google's own package always goes first."""
    if not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.append(_Finder())


def tpu_device(index: int = 0) -> torch.device:
    """Return the TPU device, as `torch_tpu.api.tpu_device()` did."""
    return torch.device("tpu", index)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules above after every other finder has failed to."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        is_package = fullname in _PACKAGES
        return importlib.util.spec_from_loader(fullname, _Loader(), is_package=is_package)


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        text = (
            "Stand-in for Google's torch_tpu, made by torchtpu; the device is torch.device('tpu')."
        )
        return types.ModuleType(spec.name, text)

    def get_code(self, name: str) -> types.CodeType | None:
        """Return what `python -m` runs: the code of our module of that name."""
        spec = importlib.util.find_spec(_SAME[name]) if name in _SAME else None
        loader = spec.loader if spec else None
        if not isinstance(loader, importlib.abc.InspectLoader):
            return None
        return loader.get_code(_SAME[name])

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        if name in _SAME:
            sys.modules[name] = importlib.import_module(_SAME[name])
        elif name == _NAME:
            importlib.import_module(f"{_NAME}.api")
        elif name == f"{_NAME}.api":
            module.tpu_device = tpu_device  # type: ignore[attr-defined]
