"""The cache tier inside the process: an LRU of compiled programs, with its statistics."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torchtpu.cache import mappings

T = TypeVar("T")
# How many entries from one look at the process's mappings to the next, while fewer than a quarter
# of them are in use, and then: a program takes 4 to 200. Above the last share, programs go.
_LOOKS = ((0.25, 128), (1.0, 16))
_SCARCE = 0.75


@dataclass
class CacheStats:
    """Counts since the process started (or since `ProgramCache.clear`)."""

    requests: int = 0
    hits: int = 0  # in memory
    host_hits: int = 0
    shared_hits: int = 0
    load_s: float = 0.0  # spent on host and shared hits
    traces: int = 0
    compilations: int = 0
    compile_s: float = 0.0
    evictions: int = 0  # from memory
    unpersistable: int = 0  # programs that only memory keeps
    per_program: dict[str, int] = field(default_factory=dict)  # program name -> compilations

    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **counts: float) -> None:
        """Add to counts; threads may do so at once."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def compiled(self, name: str, seconds: float) -> None:
        """Count a compilation."""
        self.add(compilations=1, compile_s=seconds)
        with self._lock:
            self.per_program[name] = self.per_program.get(name, 0) + 1


class ProgramCache(Generic[T]):
    """Keeps at most `capacity` compiled programs; the least recently used one goes first.

    Where the process gets short of memory mappings, half of them go; `on_scarcity` makes those let
    go who hold programs beside the cache.
    """

    def __init__(self, capacity: int, on_scarcity: Sequence[Callable[[], None]] = ()) -> None:
        self.capacity = capacity
        self._on_scarcity = on_scarcity
        self._until_look = _LOOKS[0][1]
        self.stats = CacheStats()
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the entry of `key`, made by `make()` where there is none."""
        entry = self.find(key)
        if entry is None:
            entry = make()
            self.add(key, entry)
        return entry

    def find(self, key: Hashable) -> T | None:
        """Return the entry of `key`, None where there is none; counts a request."""
        with self._lock:
            self.stats.requests += 1
            entry = self._entries.get(key)
            if entry is not None:
                self.stats.hits += 1
                self._entries.move_to_end(key)
        return entry

    def add(self, key: Hashable, entry: T) -> None:
        """Keep an entry; the least recently used one goes where there are too many."""
        with self._lock:
            self._entries[key] = entry
            self._drop_to(self.capacity)
            is_scarce = self._is_scarce()
            if is_scarce:
                self._drop_to(len(self._entries) // 2)
        if is_scarce:
            for release in self._on_scarcity:
                release()

    def _is_scarce(self) -> bool:
        """Tell whether most mappings are in use; looked at now and then, as a look takes ms."""
        self._until_look -= 1
        if self._until_look > 0:
            return False
        share = mappings.share_in_use()
        self._until_look = next((n for below, n in _LOOKS if share < below), _LOOKS[-1][1])
        return share > _SCARCE

    def _drop_to(self, count: int) -> None:
        while len(self._entries) > count:
            self._entries.popitem(last=False)
            self.stats.evictions += 1

    def clear(self) -> None:
        """Forget all entries and counts."""
        with self._lock:
            self._entries.clear()
            self.stats = CacheStats()
