"""Targets: where programs run. One module per target; the folder is the registry."""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from torchtpu.targets.base import DeviceInfo, Executable, Settings, Target, TargetError

__all__ = [
    "DeviceInfo",
    "Executable",
    "Settings",
    "Target",
    "TargetError",
    "create",
    "names",
]

_NOT_TARGETS = frozenset({"__main__", "base", "channels_last", "compile_only", "pjrt", "plugin"})


def names() -> list[str]:
    """Return the targets that can be asked for: the modules of this folder with a `create`."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NOT_TARGETS)


def create(spec: str, settings: Settings | None = None) -> Target:
    """Make the target of `NAME` or `NAME:OPTION`; empty means tpu where one is present, else cpu.

    Raises TargetError for an unknown name, or where the target cannot work here.
    """
    name, _, option = (spec or _default()).partition(":")
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise TargetError(
            f"[TORCHTPU_TARGET] unknown target {name!r}; known ones: {', '.join(names())}{hint}"
        )
    module = importlib.import_module(f"torchtpu.targets.{name}")
    made = module.create(option, settings or Settings())
    assert isinstance(made, Target), made
    return made


def _default() -> str:
    from torchtpu.targets import tpu

    return "cpu" if tpu.absent() else "tpu"
