"""The eager modes: how a prepared call is launched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from torchtpu import config, executor, recompiles
from torchtpu.eager import ahead, blame, out_of_memory
from torchtpu.eager.fused import Fused
from torchtpu.errors import TpuError
from torchtpu.generator import device_keys
from torchtpu.storage import Buffer


class EagerMode(Enum):
    """The eager modes under torch_tpu's names."""

    DEFER_NEVER = "strict"
    DEFER_AND_FUSE = "fused"
    DEFER_NEVER_AND_LAUNCH_BLOCKING = "debug"


class Strict:
    """One op at a time; the host does not wait for the device."""

    def launch(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Run a prepared call on device arrays; its outputs become the arrays of `targets`."""
        if not call.compiled and self._begin(call, arrays, targets):
            return
        for target, result in zip(targets, call.run(arrays), strict=True):
            target.array = result

    def launch_whole(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Run a call that is a program of its own in every mode: a compiled graph."""
        self.launch(call, arrays, targets)

    random_key = staticmethod(device_keys)

    def _begin(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> bool:
        """Let a call wait for its program and become `Ahead`; False: it is to run now."""
        global current
        if current is not self or executor.current().workers.limit <= 0:
            return False
        job = executor.current().start(call.program)
        if job.ready():
            call.use(job.take().run)
            return False
        ahead.queue.add(call, arrays, targets, job)
        current = AHEAD
        return True

    def flush(self) -> None:
        """Launch what is held back: nothing."""

    def enter(self) -> None:
        """Become the current mode."""

    def leave(self) -> None:
        """Stop being the current mode, with nothing held back."""


class Ahead(Strict):
    """Strict while programs compile in other threads: later launches wait behind those of them."""

    def launch(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Run a prepared call, after those that wait."""
        global current
        ahead.queue.poll()
        if ahead.queue:
            job = None if call.compiled else executor.current().start(call.program)
            ahead.queue.add(call, arrays, targets, job)
            return
        if current is self:
            current = STRICT
        STRICT.launch(call, ahead.values(arrays), targets)

    def flush(self) -> None:
        """Launch what waits."""
        ahead.queue.drain()

    leave = flush


class Debug(Strict):
    """One op at a time; the host waits, so that an error is raised at the op's line."""

    def launch(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Check indices, run a prepared call, wait for it and, on request, look for NaNs."""
        call.check_indices(arrays)
        results = call.run(arrays)
        device = executor.current().target
        device.wait(results)
        if config.get("check_nan"):
            _raise_on_nan(call.name, [device.get(a) for a in results])
        for target, result in zip(targets, results, strict=True):
            target.array = result


STRICT, AHEAD = Strict(), Ahead()
_MODES: dict[EagerMode, Any] = {
    EagerMode.DEFER_NEVER: STRICT,
    EagerMode.DEFER_AND_FUSE: Fused(),
    EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING: Debug(),
}
current: Any = STRICT  # anything with `launch` and `flush`
recompiles.history.user_line = blame.user_line
out_of_memory.serve()


def mode() -> EagerMode:
    """Return the process's eager mode."""
    return next((m for m, launcher in _MODES.items() if launcher is current), EagerMode.DEFER_NEVER)


def set_mode(wanted: EagerMode) -> EagerMode:
    """Set the process's eager mode, after launching what is held back; return the one before."""
    global current
    if wanted not in _MODES:
        raise TpuError(f"[eager_mode] expected an EagerMode, got {wanted!r}")
    before = mode()
    if wanted != before:
        current.leave()
        current = _MODES[wanted]
        current.enter()
    return before


def synchronize() -> None:
    """Launch what is held back and wait for the device."""
    current.flush()
    executor.current().target.wait([])


@contextmanager
def use(wanted: EagerMode) -> Iterator[None]:
    """Run a `with` block in another eager mode, of the process: backward has its own thread."""
    before = set_mode(wanted)
    try:
        yield
    finally:
        set_mode(before)


def from_environment() -> EagerMode:
    """Return the mode that TORCHTPU_MODE or torch_tpu's variables ask for; fused by default."""
    if config.get("mode"):
        return EagerMode(config.get("mode"))
    if config.get("defer_and_fuse"):
        return EagerMode.DEFER_AND_FUSE
    if config.get("launch_blocking"):
        return EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    wanted = config.get("defer_and_fuse") is None
    return EagerMode.DEFER_AND_FUSE if wanted else EagerMode.DEFER_NEVER


def _raise_on_nan(name: str, results: Sequence[Any]) -> None:
    for index, result in enumerate(results):
        if result.dtype.kind in "fcV" and bool((result != result).any()):
            raise TpuError(f"[{name}] output {index} of shape {result.shape} has NaN values")
