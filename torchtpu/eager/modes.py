"""The eager modes: how a prepared call is launched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from torchtpu import config, executor
from torchtpu.errors import TpuError


class EagerMode(Enum):
    """The eager modes under torch_tpu's names; `DEFER_AND_FUSE` is not available yet."""

    DEFER_NEVER = "strict"
    DEFER_AND_FUSE = "fused"
    DEFER_NEVER_AND_LAUNCH_BLOCKING = "debug"


class Strict:
    """One op at a time; the host does not wait for the device."""

    mode = EagerMode.DEFER_NEVER

    def launch(self, call: Any, arrays: Sequence[Any]) -> list[Any]:
        """Run a prepared call on device arrays and return its outputs."""
        result: list[Any] = call.run(arrays)
        return result


class Debug:
    """One op at a time; the host waits, so that an error of the device is raised at the op's line."""

    mode = EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING

    def launch(self, call: Any, arrays: Sequence[Any]) -> list[Any]:
        """Check indices, run a prepared call, wait for it and, on request, look for NaNs."""
        call.check_indices(arrays)
        result: list[Any] = call.run(arrays)
        target = executor.current().target
        target.wait(result)
        if config.get("check_nan"):
            _raise_on_nan(call.name, [target.get(a) for a in result])
        return result


STRICT = Strict()
_MODES: dict[EagerMode, Any] = {m.mode: m for m in (STRICT, Debug())}
current: Any = STRICT  # anything with `mode` and `launch`


def set_mode(mode: EagerMode) -> EagerMode:
    """Set the process's eager mode; return the one before."""
    global current
    if mode not in _MODES:
        names = ", ".join(f"EagerMode.{m.name}" for m in _MODES)
        raise TpuError(f"[eager_mode] {mode} is not available in this version; expected one of {names}")
    before, current = current.mode, _MODES[mode]
    return before


@contextmanager
def use(mode: EagerMode) -> Iterator[None]:
    """Run a `with` block in another eager mode (of the whole process: backward has its own thread)."""
    before = set_mode(mode)
    try:
        yield
    finally:
        set_mode(before)


def from_environment() -> EagerMode:
    """Return the mode that TORCHTPU_MODE or TORCH_TPU_LAUNCH_BLOCKING ask for."""
    if config.get("mode"):
        return EagerMode(config.get("mode"))
    if config.get("launch_blocking"):
        return EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    return EagerMode.DEFER_NEVER


def _raise_on_nan(name: str, results: Sequence[Any]) -> None:
    for index, result in enumerate(results):
        if result.dtype.kind in "fcV" and bool((result != result).any()):
            raise TpuError(f"[{name}] output {index} of shape {result.shape} has NaN values")
