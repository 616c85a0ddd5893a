"""The entry point of torch.backends: `import torch` calls it, and device tpu exists."""

from __future__ import annotations


def load() -> None:
    """Register with torch."""
    from torchtpu.registration import autoload

    autoload()
