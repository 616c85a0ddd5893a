"""Which arrays are in the HBM of a simulated device, and which storages have asked for memory that
nothing is written to yet.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torchtpu.sim.memory import HbmAccount


class Holder(Protocol):
    """A storage; `array` is None while nothing is written to it."""

    array: Any


class Residents:
    """Counts arrays in an account for as long as they live; every array counts once.

    Memory that was only asked for is not in the account: a device takes it when it is written. It
    is part of `in_use_bytes` and `peak_bytes` here, and what is asked for must fit beside it.
    """

    def __init__(self, account: HbmAccount) -> None:
        self._account = account
        self._arrays: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._unwritten: dict[int, tuple[weakref.ref[Any], int]] = {}

    def add(self, array: Any, size_bytes: int) -> None:
        """Count an array until it dies. Raises OutOfHBM."""
        key = id(array)
        if key not in self._arrays:
            self._account.allocate(size_bytes)
            self._arrays[key] = weakref.ref(array, lambda _: self._gone(key)), size_bytes

    def drop(self, array: Any) -> None:
        """Count an array no more: a program has taken over its memory."""
        self._gone(id(array))

    def reserve(self, holder: Holder, size_bytes: int) -> None:
        """A storage asks for memory without writing to it. Raises OutOfHBM."""
        key = id(holder)
        self._unwritten.pop(key, None)
        self._account.require(size_bytes, held_bytes=self._unwritten_bytes())
        forget = self._forgetting(key)
        self._unwritten[key] = weakref.ref(holder, forget), size_bytes

    def require(self, size_bytes: int, details: Callable[[], Sequence[str]] = list) -> None:
        """Use memory on top of the arrays for a moment. Raises OutOfHBM with these lines."""
        self._account.require(size_bytes, details)

    @property
    def in_use_bytes(self) -> int:
        """Bytes of arrays, and of storages that nothing is written to."""
        return self._account.in_use_bytes + self._unwritten_bytes()

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes in use so far, temporaries of programs included."""
        self._account.peak_bytes = max(self._account.peak_bytes, self.in_use_bytes)
        return self._account.peak_bytes

    @property
    def allocations(self) -> int:
        """Arrays counted so far, dead ones too."""
        return self._account.allocations

    def reset_peak(self) -> None:
        """Start a new peak from what is in use now."""
        self._account.peak_bytes = self.in_use_bytes

    def _gone(self, key: int) -> None:
        _, size_bytes = self._arrays.pop(key, (None, None))
        if size_bytes is not None:
            self._account.free(size_bytes)

    def _forgetting(self, key: int) -> Callable[[object], None]:
        return lambda _: self._forget(key)

    def _forget(self, key: int) -> None:
        self._unwritten.pop(key, None)

    def _unwritten_bytes(self) -> int:
        total = 0
        for key, (reference, size_bytes) in list(self._unwritten.items()):
            holder = reference()
            if holder is None or holder.array is not None:
                self._forget(key)
            else:
                total += size_bytes
        return total
