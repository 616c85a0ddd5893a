"""An account of HBM: how much is allocated, the peak, and an error where a chip would run out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_GIB = 2**30


class OutOfHBM(RuntimeError):
    """An allocation beyond the HBM of the simulated chip."""

    def __init__(
        self, *, requested_bytes: int, in_use_bytes: int, capacity_bytes: int, chip: str
    ) -> None:
        self.requested_bytes = requested_bytes
        self.in_use_bytes = in_use_bytes
        self.capacity_bytes = capacity_bytes
        self.chip = chip
        missing = in_use_bytes + requested_bytes - capacity_bytes
        super().__init__(
            f"[sim {chip}] out of HBM: requested {requested_bytes / _GIB:.2f} GiB, in use "
            f"{in_use_bytes / _GIB:.2f} GiB of {capacity_bytes / _GIB:.2f} GiB usable, "
            f"{missing / _GIB:.2f} GiB missing"
        )


@dataclass(kw_only=True)
class HbmAccount:
    """HBM of one device in bytes. Sizes are counted as asked for, without padding or fragmentation.

    With `enforce` False an allocation beyond the capacity is counted instead of raised.
    """

    capacity_bytes: int
    chip: str
    enforce: bool = True
    in_use_bytes: int = field(default=0, init=False)
    peak_bytes: int = field(default=0, init=False)
    allocations: int = field(default=0, init=False)
    frees: int = field(default=0, init=False)

    def allocate(self, size_bytes: int) -> None:
        """Take memory. Raises OutOfHBM, leaving the account unchanged, ValueError for a negative
        size.
        """
        if size_bytes < 0:
            raise ValueError(f"[sim] a size is not negative, got {size_bytes}")
        if self.enforce and self.in_use_bytes + size_bytes > self.capacity_bytes:
            raise OutOfHBM(
                requested_bytes=size_bytes,
                in_use_bytes=self.in_use_bytes,
                capacity_bytes=self.capacity_bytes,
                chip=self.chip,
            )
        self.in_use_bytes += size_bytes
        self.allocations += 1
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)

    def free(self, size_bytes: int) -> None:
        """Give memory back. Raises ValueError when more is freed than is in use."""
        if not 0 <= size_bytes <= self.in_use_bytes:
            raise ValueError(
                f"[sim] cannot free {size_bytes} bytes, {self.in_use_bytes} are in use"
            )
        self.in_use_bytes -= size_bytes
        self.frees += 1

    @property
    def live_allocations(self) -> int:
        """Allocations that have not been freed."""
        return self.allocations - self.frees

    def reset_peak(self) -> None:
        """Start a new peak from what is in use now."""
        self.peak_bytes = self.in_use_bytes

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Raise nothing and keep the peak inside a `with` block: nothing takes memory there."""
        enforce, peak = self.enforce, self.peak_bytes
        self.enforce = False
        try:
            yield
        finally:
            self.enforce, self.peak_bytes = enforce, peak
