"""The entry point of torch.backends: `import torch` calls it, and device tpu exists."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from typing import Any

_WITHOUT_TORCH = frozenset({"autoload", "cache", "cli", "config", "errors", "perf_model", "sim", "targets"})


def load() -> None:
    """Register with torch."""
    from torchtpu.registration import autoload

    autoload()


class TorchFirst(importlib.abc.MetaPathFinder):
    """Imports torch before the first module of torchtpu that needs it.

    Otherwise that module would import torch, and torch would load this package while the module that
    asked is half done.
    """

    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: Any = None) -> None:
        """Find nothing: the other finders do."""
        package, _, rest = fullname.partition(".")
        if package == "torchtpu" and rest and rest.partition(".")[0] not in _WITHOUT_TORCH:
            sys.meta_path.remove(self)
            import torch  # noqa: F401  # for what it does
