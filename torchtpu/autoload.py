"""The entry point of torch.backends: `import torch` calls it, and device tpu exists."""

from __future__ import annotations

import sys


def load() -> None:
    """Register with torch, unless torch is being imported by torchtpu itself, which then does it."""
    if not any(_is_importing(name) for name in sys.modules if name.startswith("torchtpu.")):
        from torchtpu.registration import autoload

        autoload()


def _is_importing(name: str) -> bool:
    spec = getattr(sys.modules[name], "__spec__", None)
    return name != __name__ and bool(getattr(spec, "_initializing", False))
