"""Streams and events of device tpu: one in-order queue, and marks in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchtpu import executor
from torchtpu.eager import modes
from torchtpu.errors import TpuError


class Stream(torch.Stream):
    """The one queue of the device; work on it runs in the order in which it was launched."""

    priority: int

    def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> Stream:
        """Return the queue; a priority changes nothing, as there is no other queue."""
        del device
        made: Stream = super().__new__(cls, device="tpu:0")
        made.priority = priority
        return made

    def synchronize(self) -> None:
        """Wait for all work on the stream."""
        modes.synchronize()

    def query(self) -> bool:
        """Tell whether all work is done, by waiting for it (XLA has no way to ask)."""
        self.synchronize()
        return True

    def wait_event(self, event: Any) -> None:
        """Let later work wait for an event: always so, on one in-order queue."""
        del event

    def wait_stream(self, stream: torch.Stream) -> None:
        """Let later work wait for another stream's: always so, on one in-order queue."""
        del stream

    def record_event(self, event: Any = None) -> Any:
        """Record an event (a new one by default) and return it."""
        event = event or Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"torch.tpu.Stream(device={self.device}, stream_id={self.stream_id})"


class Event:
    """A mark in the queue; with `enable_timing`, its time on the device's clock.

    On target sim that is the simulated clock, on which the host need not wait for a mark; elsewhere
    it is the host's clock, after the work before is done.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise TpuError("[torch.tpu.Event] interprocess events are not supported on tpu")
        del blocking
        self.enable_timing = enable_timing
        self._time_s: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of the work launched so far."""
        del stream
        target = executor.current().target
        modes.current.flush()
        clock = target.clock_s()
        if clock is None and self.enable_timing:
            modes.synchronize()
        self._time_s = time.perf_counter() if clock is None else clock

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to a later one; on target sim simulated ones."""
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._time_s is None or end_event._time_s is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return round((end_event._time_s - self._time_s) * 1e12) / 1e9  # whole picoseconds

    def query(self) -> bool:
        """Tell whether the work before the event is done, by waiting for it."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Wait for the work before the event."""
        modes.synchronize()

    def wait(self, stream: Stream | None = None) -> None:
        """Let later work wait for the event: always so, on one in-order queue."""
        del stream


def current_stream(device: Any = None) -> Stream:
    """Return the device's stream."""
    del device
    return Stream()


default_stream = current_stream


def set_stream(stream: Stream) -> None:
    """Make a stream current; there is one queue, so this changes nothing."""
    del stream


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Run a `with` block on a stream; there is one queue, so this changes nothing."""
    del stream
    yield
