"""The cache tier inside the process: an LRU of compiled programs, with its statistics."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class CacheStats:
    """Counts since the process started (or since `ProgramCache.clear`)."""

    requests: int = 0
    hits: int = 0
    compilations: int = 0
    compile_s: float = 0.0
    evictions: int = 0
    per_program: dict[str, int] = field(default_factory=dict)  # program name -> compilations


class ProgramCache(Generic[T]):
    """Keeps at most `capacity` compiled programs; the least recently used one goes first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.stats = CacheStats()
        self._entries: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, name: str, make: Callable[[], T]) -> T:
        """Return the entry of `key`, made by `make()` where there is none."""
        self.stats.requests += 1
        entry = self._entries.get(key)
        if entry is not None:
            self.stats.hits += 1
            self._entries.move_to_end(key)
            return entry
        self.stats.compilations += 1
        self.stats.per_program[name] = self.stats.per_program.get(name, 0) + 1
        entry = make()
        self._entries[key] = entry
        if len(self._entries) > self.capacity:
            self._entries.popitem(last=False)
            self.stats.evictions += 1
        return entry

    def clear(self) -> None:
        """Forget all entries and counts."""
        self._entries.clear()
        self.stats = CacheStats()
