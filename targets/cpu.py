"""Target cpu: XLA's own CPU client, for real numerics on any machine."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from torchtpu.private import jax as private
from torchtpu.targets.base import DeviceInfo, Executable, Settings, Target
from torchtpu.targets.pjrt import PjrtTarget
from torchtpu.targets.world import CpuWorld

_PROCESSOR = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
)  # fmt: skip


def create(_option: str, settings: Settings) -> Target:
    """Make the target; it has no options."""
    asked = settings.world
    world = CpuWorld(asked) if asked is not None and asked.size > 1 else None
    devices = math.prod(size for _, size in settings.mesh)
    client = world.client if world else _client(devices)
    made = _CpuTarget(
        client,
        name="cpu",
        platform="cpu",
        libraries={"lapack_": _fill_in_lapack},
        axes=settings.mesh,
    )
    made.world = world
    made.bfloat16_passes = settings.imitate_tpu_matmul
    return made


@cache
def _client(devices: int) -> Any:
    """Make a client of our own, so the user's JAX programs and settings are not touched.

    It lives as long as the process: jaxlib takes a later client at the address of an earlier one
    for that one, and refuses its buffers.
    """
    return private.cpu_client(devices)


class _CpuTarget(PjrtTarget):
    bfloat16_passes = False  # whether float32 matmuls are computed as on a TPU
    world: CpuWorld | None = None  # that this process is in

    def launch_together(self, launch: Callable[[], tuple[Any, Any]], ranks: Sequence[int]) -> Any:
        assert self.world is not None, ranks
        return self.world.launch(launch, ranks)

    def abort(self) -> None:
        if self.world is not None:
            self.world.abort()

    def info(self) -> DeviceInfo:
        """The device's memory is the host's."""
        return replace(super().info(), memory_bytes=_memory_bytes())

    def compile(
        self,
        module: Any,
        outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        ranks: Sequence[int] = (),
    ) -> Executable:
        from torchtpu.targets.channels_last import channels_last
        from torchtpu.targets.matmul_passes import in_bfloat16_passes

        if self.bfloat16_passes:
            module = in_bfloat16_passes(module)
        return super().compile(channels_last(module), outputs, ranks)

    def identity(self) -> tuple[tuple[str, str], ...] | None:
        passes = (("float32 matmul", "in bfloat16 passes"),) if self.bfloat16_passes else ()
        return (*(super().identity() or ()), *passes, *_host())


@cache
def _memory_bytes() -> int:
    """Physical memory of the host; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


@cache
def _fill_in_lapack() -> None:
    """A loaded executable that calls LAPACK without this ends the process."""
    private.initialize_lapack()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _host() -> tuple[tuple[str, str], ...]:
    """Name this machine's kind of processor; XLA compiles for exactly that and for its cores."""
    found = dict.fromkeys(_PROCESSOR, "")
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            if not line.strip():  # the second processor is like the first
                break
            if name.strip() in found:
                found[name.strip()] = value.strip()
    about = json.dumps([platform.machine(), platform.processor(), *found.values()])
    return (
        ("host cpu", f"{found['model name']} {hashlib.sha256(about.encode()).hexdigest()[:32]}"),
        ("host cores", str(_cores())),
    )
