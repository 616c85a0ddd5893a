"""The package's front door: names are resolved on first use, so that importing costs nothing."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from torchtpu.autoload import TorchFirst

if TYPE_CHECKING:
    from torchtpu.registration import register

__version__ = "0.1.0"

__all__ = ["__version__", "register"]

_LAZY = {"register": "torchtpu.registration"}

sys.meta_path.insert(0, TorchFirst())


def __getattr__(name: str) -> object:
    """Import the module that owns a public name the first time somebody asks for it (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"[torchtpu] no attribute {name!r}, expected one of {__all__}")
    value: object = getattr(import_module(_LAZY[name]), name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
