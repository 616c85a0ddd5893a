"""Target cpu: XLA's own CPU client, for real numerics on any machine."""

from __future__ import annotations

from torchtpu.targets.base import Target
from torchtpu.targets.pjrt import PjrtTarget


def create(_option: str, _numerics: bool = True) -> Target:
    """Make the target; it has no options.

    It has a client of its own, so the user's JAX programs and settings are not touched.
    """
    from jax._src.lib import xla_client  # type: ignore[attr-defined]  # a re-export

    client = xla_client.make_cpu_client(asynchronous=True)
    return PjrtTarget(client, name="cpu", platform="cpu")
