"""Target cpu: XLA's own CPU client, for real numerics on any machine."""

from __future__ import annotations

from torchtpu.targets.base import Target
from torchtpu.targets.pjrt import PjrtTarget


def create(_option: str) -> Target:
    """Make the target; it has no options."""
    from jax._src import xla_bridge

    return PjrtTarget(xla_bridge.get_backend("cpu"), name="cpu", platform="cpu")
