"""The package's front door: names are resolved on first use, so that importing costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtpu import spmd
    from torchtpu.aot.compiling import aot_compile
    from torchtpu.aot.export import export
    from torchtpu.aot.load import load_exported
    from torchtpu.recompiles import explain_recompiles
    from torchtpu.registration import register

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "aot_compile",
    "explain_recompiles",
    "export",
    "load_exported",
    "register",
    "spmd",
]

_LAZY = {
    "aot_compile": "torchtpu.aot.compiling",
    "export": "torchtpu.aot.export",
    "load_exported": "torchtpu.aot.load",
    "explain_recompiles": "torchtpu.recompiles",
    "register": "torchtpu.registration",
    "spmd": "torchtpu.spmd",
}
_WITHOUT_TORCH = frozenset(
    {
        "autoload",
        "background",
        "cache",
        "cli",
        "config",
        "errors",
        "perf_model",
        "private",
        "sim",
        "targets",
    }
)


class _TorchFirst(MetaPathFinder):
    """Imports torch before the first module of this package that needs it.

    Otherwise that module would import torch, and torch would load this package while the
    module is half done.
    """

    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: object = None) -> None:
        """Find nothing: the other finders do."""
        package, _, rest = fullname.partition(".")
        if package == __name__ and rest and rest.partition(".")[0] not in _WITHOUT_TORCH:
            sys.meta_path.remove(self)
            import_module("torch")


sys.meta_path.insert(0, _TorchFirst())


def __getattr__(name: str) -> object:
    """Import the module that owns a public name the first time somebody asks for it (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"[torchtpu] no attribute {name!r}, expected one of {__all__}")
    owner = import_module(_LAZY[name])
    value: object = owner if owner.__name__ == f"{__name__}.{name}" else getattr(owner, name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
