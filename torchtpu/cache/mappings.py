"""How near the process is to Linux's limit of memory mappings, several of which a program takes.

XLA's CPU compiler ends the process where it gets none.
"""

from __future__ import annotations

from pathlib import Path

_LIMIT = Path("/proc/sys/vm/max_map_count")
_MAPPINGS = Path("/proc/self/maps")
_SHARE = 0.75  # of the limit; the rest is for what is compiled until somebody looks again


def are_scarce() -> bool:
    """Tell whether most of the mappings that the process may have are taken; never, off Linux."""
    try:
        return _MAPPINGS.read_bytes().count(b"\n") > _SHARE * int(_LIMIT.read_text())
    except (OSError, ValueError):
        return False
