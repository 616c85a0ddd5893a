"""Targets: where programs run. One module per target; the folder is the registry."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchtpu.private import jax as private
from torchtpu.targets.base import (
    CompileReport,
    DeviceInfo,
    Executable,
    Settings,
    Target,
    TargetError,
)
from torchtpu.targets.meshes import DeviceMesh, Spec
from torchtpu.targets.placement import Place, arranged
from torchtpu.targets.world import World

__all__ = [
    "EXCHANGING",
    "LAUNCH_VARIABLES",
    "PLATFORMS",
    "CompileReport",
    "DeviceInfo",
    "DeviceMesh",
    "Executable",
    "Place",
    "Settings",
    "Spec",
    "Target",
    "TargetError",
    "World",
    "absent",
    "arranged",
    "compile_for",
    "create",
    "default",
    "is_abstract",
    "local_chips",
    "names",
    "register_kernels",
    "register_rules",
    "simulated",
]

# What the processes of a launch on TPUs find each other by: addresses, and chips along x, y, z.
LAUNCH_VARIABLES = ("TORCH_TPU_SLICEBUILDER_ADDRESSES", "TORCH_TPU_TOPOLOGY")
PLATFORMS = ("tpu", "cpu")  # for which programs can be lowered without their devices
EXCHANGING = ("cpu",)  # on which collectives are fastest as messages (lowerings/exchanges.py)
_NOT_TARGETS = frozenset(
    {
        "__main__",
        "base",
        "channels_last",
        "child",
        "compile_batch",
        "compile_only",
        "matmul_passes",
        "meshes",
        "pjrt",
        "placement",
        "plugin",
        "schur",
        "tpu_compiler",
        "tpu_rules",
        "world",
    }
)


def names() -> list[str]:
    """Return the targets that can be asked for: the modules of this folder with a `create`."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NOT_TARGETS)


def create(spec: str, settings: Settings | None = None) -> Target:
    """Make the target of `NAME` or `NAME:OPTION`; empty means tpu where one is present, else cpu.

    Raises TargetError for an unknown name, or where the target cannot work here.
    """
    name, _, option = (spec or default()).partition(":")
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise TargetError(
            f"[TORCHTPU_TARGET] unknown target {name!r}; known ones: {', '.join(names())}{hint}"
        )
    reason = absent("tpu")
    if reason:  # JAX would start libtpu, which then asks the network what machine this is
        private.let_absent("tpu", reason)
    module = importlib.import_module(f"torchtpu.targets.{name}")
    made = module.create(option, settings or Settings())
    assert isinstance(made, Target), made
    return made


def is_abstract(spec: str, *, numerics: bool) -> bool:
    """Tell whether the arrays of `NAME` or `NAME:OPTION` have no values; numerics: if there are."""
    return spec.partition(":")[0] == "sim" and not numerics


def compile_for(
    module: Path, topology: str, mesh: Sequence[int], executable: Path | None, limit_s: float
) -> CompileReport:
    """Compile a file of StableHLO for a TPU topology, in a process of its own.

    mesh: the sizes of the axes that it is partitioned on, (1,) for one device; executable: a file
    for what the compiler makes. TargetError says why there is nothing.
    """
    from torchtpu.targets import compile_only

    return compile_only.compile_apart(module, topology, mesh, executable, limit_s)


def register_rules() -> None:
    """Let JAX lower for each platform what its compiler takes; before anything is lowered."""
    from torchtpu.targets import tpu_rules

    tpu_rules.register()


def register_kernels(primitive: Any, rule: Any) -> None:
    """Let JAX lower a primitive by kernels where these are compiled for a TPU."""
    from jax.interpreters import mlir

    mlir.register_lowering(primitive, rule, platform="tpu")


def simulated(chip: str) -> str:
    """Return the spec of a simulated chip ("v6e")."""
    return f"sim:{chip}"


def absent(spec: str) -> str:
    """Say why a target's device cannot be on this machine; empty where it can, or needs none."""
    name = spec.partition(":")[0]
    if name not in names():
        return ""
    module = importlib.import_module(f"torchtpu.targets.{name}")
    said: str = module.absent() if hasattr(module, "absent") else ""
    return said


def local_chips() -> int:
    """Return how many TPU chips this host has."""
    from torchtpu.targets import tpu

    return tpu.chips()


def default(is_absent: Callable[[str], object] = absent) -> str:
    """Return the target of an empty spec: tpu where one is present, else cpu."""
    return "cpu" if is_absent("tpu") else "tpu"
