"""How near the process is to Linux's limit of memory mappings, several of which a program takes.

XLA's CPU compiler ends the process where it gets none.
"""

from __future__ import annotations

from pathlib import Path

_LIMIT = Path("/proc/sys/vm/max_map_count")
_MAPPINGS = Path("/proc/self/maps")


def share_in_use() -> float:
    """Part of the mappings that the process may have which it has; 0 off Linux."""
    try:
        return _MAPPINGS.read_bytes().count(b"\n") / int(_LIMIT.read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0
