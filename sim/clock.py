"""Simulated time: a host that enqueues and a device that works its queue off, in integer
picoseconds.
"""

from __future__ import annotations

PICOSECONDS_PER_SECOND = 1_000_000_000_000


def to_ps(seconds: float) -> int:
    """Seconds as whole picoseconds, rounded half to even. Raises ValueError for negative or non-
    finite time.
    """
    if not 0.0 <= seconds < float("inf"):
        raise ValueError(f"[sim] a duration is finite and not negative, got {seconds} s")
    return round(seconds * PICOSECONDS_PER_SECOND)


def to_s(picoseconds: int) -> float:
    """Picoseconds as seconds."""
    return picoseconds / PICOSECONDS_PER_SECOND


class Clock:
    """Host time and the time at which the device's queue runs empty; deterministic, never goes
    back.
    """

    def __init__(self) -> None:
        self.host_ps = 0
        self.device_free_ps = 0
        self.device_busy_ps = 0

    def host_work(self, duration_ps: int) -> None:
        """The host computes for a while; the device goes on with its queue."""
        self.host_ps += _checked(duration_ps)

    def enqueue(self, duration_ps: int) -> int:
        """Put work on the device's queue: it starts when it is enqueued and the queue is empty. Its
        end.
        """
        start = max(self.host_ps, self.device_free_ps)
        self.device_free_ps = start + _checked(duration_ps)
        self.device_busy_ps += duration_ps
        return self.device_free_ps

    def record(self) -> int:
        """The time at which everything enqueued so far is done: what an event records."""
        return max(self.host_ps, self.device_free_ps)

    def synchronize(self) -> int:
        """The host waits until the device's queue is empty; host time afterwards."""
        self.host_ps = self.record()
        return self.host_ps

    def wait_until(self, event_ps: int) -> int:
        """The host waits for a recorded event; host time afterwards."""
        self.host_ps = max(self.host_ps, event_ps)
        return self.host_ps

    @property
    def device_idle_ps(self) -> int:
        """Time in which the device had nothing to do, up to the end of its queue."""
        return self.device_free_ps - self.device_busy_ps


def _checked(duration_ps: int) -> int:
    if duration_ps < 0:
        raise ValueError(f"[sim] a duration is not negative, got {duration_ps} ps")
    return duration_ps
