"""Accounts of HBM: how much is in use, the peak, and an error where a chip would run out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from torchtpu.perf_model.quantities import size

_GIB = 2**30


class OutOfHBM(RuntimeError):
    """An allocation beyond the HBM of the simulated chip; `details` are lines that say more."""

    def __init__(
        self,
        *,
        requested_bytes: int,
        in_use_bytes: int,
        capacity_bytes: int,
        chip: str,
        details: Sequence[str] = (),
    ) -> None:
        self.requested_bytes = requested_bytes
        self.in_use_bytes = in_use_bytes
        self.capacity_bytes = capacity_bytes
        self.chip = chip
        self.details = tuple(details)
        missing = in_use_bytes + requested_bytes - capacity_bytes
        text = (
            f"[sim {chip}] out of HBM: requested {_amount(requested_bytes)}, in use "
            f"{_amount(in_use_bytes)} of {_amount(capacity_bytes)} usable, "
            f"{_amount(missing)} missing; a smaller batch, activation checkpointing or a chip "
            "with more HBM may fit"
        )
        super().__init__("\n".join([text, *details]))


def _amount(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.2f} GiB" if size_bytes >= _GIB // 100 else size(size_bytes)


class MemoryUse(Protocol):
    """What statistics of a device's memory are read from; bytes."""

    @property
    def in_use_bytes(self) -> int:
        """Bytes in use now."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use since the start or the last reset."""

    @property
    def allocations(self) -> int:
        """Allocations made so far."""

    def reset_peak(self) -> None:
        """Start a new peak from what is in use now."""


@dataclass(kw_only=True)
class HbmAccount:
    """HBM of one device in bytes. Sizes are counted as asked for, without padding or fragmentation.

    With `enforce` False an allocation beyond the capacity is counted instead of raised. `on_full`
    makes the error that is raised from one that says how much is missing; `on_storage` is told of
    each allocation that has a holder.
    A caller in a hurry may itself add to in_use_bytes and allocations what keeps the sum at or
    below quiet_bytes.
    """

    capacity_bytes: int
    chip: str
    enforce: bool = True
    on_full: Callable[[OutOfHBM], Exception] | None = None
    on_storage: Callable[[object, int], None] | None = None
    in_use_bytes: int = field(default=0, init=False)
    peak_bytes: int = field(default=0, init=False)
    quiet_bytes: int = field(default=0, init=False)
    allocations: int = field(default=0, init=False)
    frees: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._set_peak(0)

    def allocate(self, size_bytes: int, holder: object = None) -> None:
        """Take memory. Raises OutOfHBM, leaving the account unchanged, ValueError for a negative
        size.
        """
        self.require(size_bytes)
        self.in_use_bytes += size_bytes
        self.allocations += 1
        if self.on_storage is not None and holder is not None:
            self.on_storage(holder, size_bytes)

    def require(
        self, size_bytes: int, details: Callable[[], Sequence[str]] = list, held_bytes: int = 0
    ) -> None:
        """Use memory on top of what is in use, for a moment: the peak counts it.

        held_bytes: in use beside what the account knows of. Raises OutOfHBM with the lines of
        `details` where there is not so much, ValueError for a negative size.
        """
        if size_bytes < 0:
            raise ValueError(f"[sim] a size is not negative, got {size_bytes}")
        in_use_bytes = self.in_use_bytes + held_bytes
        if self.enforce and in_use_bytes + size_bytes > self.capacity_bytes:
            error = OutOfHBM(
                requested_bytes=size_bytes,
                in_use_bytes=in_use_bytes,
                capacity_bytes=self.capacity_bytes,
                chip=self.chip,
                details=details(),
            )
            raise error if self.on_full is None else self.on_full(error)
        self._set_peak(max(self.peak_bytes, in_use_bytes + size_bytes))

    def _set_peak(self, peak_bytes: int) -> None:
        self.peak_bytes = peak_bytes
        self.quiet_bytes = peak_bytes if self.on_storage is None else -1

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
        self._set_peak(self.in_use_bytes)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Raise nothing and keep the peak inside a `with` block: nothing takes memory there."""
        enforce, peak = self.enforce, self.peak_bytes
        self.enforce = False
        try:
            yield
        finally:
            self.enforce = enforce
            self._set_peak(peak)
