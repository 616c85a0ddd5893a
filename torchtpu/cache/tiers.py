"""The way to a compiled program that the process lacks: host, shared directory, compiler."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torchtpu import config
from torchtpu.cache import directory
from torchtpu.cache.directory import log
from torchtpu.cache.entry import Entry
from torchtpu.cache.key import Key
from torchtpu.cache.memory import ProgramCache
from torchtpu.cache.readahead import Readahead
from torchtpu.cache.store import Store
from torchtpu.cache.tier import Tier

T = TypeVar("T")

WAIT_S = 300.0  # for another process that compiles the same program
SHARED_LIMIT_S = 10.0  # for one file operation in the directory between hosts


@dataclass(frozen=True, kw_only=True)
class Codec(Generic[T]):
    """How a program becomes an executable, by compiling or out of bytes, and bytes again."""

    compile: Callable[[], T]
    load: Callable[[bytes], T]
    dump: Callable[[T], bytes | None]  # None: cannot be kept


class Tiers:
    """The tiers outside the process; a program is compiled by one of a host's processes."""

    def __init__(
        self, memory: ProgramCache[Any], host: Tier, shared: Tier, wait_s: float = WAIT_S
    ) -> None:
        self.host = host
        self.shared = shared
        self.ahead: Readahead[Any] = Readahead(host)
        self._memory = memory
        self._wait_s = wait_s

    def find(self, key: Key, codec: Codec[T]) -> T | None:
        """Return the executable of a key where a tier has it, else None."""
        found = self._from_host(key, codec)
        return found if found is not None else self._load(self.shared, key, codec)

    def get(self, key: Key, name: str, codec: Codec[T]) -> T:
        """Return the executable of a key: loaded, or compiled and kept."""
        found = self._from_host(key, codec)
        if found is not None:
            return found
        entry = None
        with self.host.lock(key, self._wait_s) as lock:
            found = self.find(key, codec)
            if found is not None:
                return found
            found = codec.compile()
            entry = self._entry(key, name, codec, found)
            if (entry is None or not self.host.write(entry)) and lock is not None:
                lock.fruitless()
        if entry is not None:
            self.shared.write(entry)
        return found

    def _from_host(self, key: Key, codec: Codec[T]) -> T | None:
        start = time.perf_counter()
        found: T | None = self.ahead.take(key.digest)
        if found is None:
            return self._load(self.host, key, codec)
        seconds = time.perf_counter() - start
        log.info("[cache] loaded ahead: %s after %.1f ms", key.digest, 1e3 * seconds)
        self._memory.stats.add(host_hits=1, load_s=seconds)
        return found

    def _load(self, tier: Tier, key: Key, codec: Codec[T]) -> T | None:
        start = time.perf_counter()
        entry = tier.read(key.digest)
        if entry is None:
            return None
        try:
            loaded = codec.load(entry.payload)
        except Exception as error:  # whatever the target's library says of its own bytes
            tier.reject(key.digest, error)
            return None
        seconds = time.perf_counter() - start
        log.info("[cache] %s: loaded %s in %.1f ms", tier.name, entry.name, 1e3 * seconds)
        if tier is self.shared:
            self._memory.stats.add(shared_hits=1, load_s=seconds)
            self.host.write(entry)
        else:
            self._memory.stats.add(host_hits=1, load_s=seconds)
        return loaded

    def _entry(self, key: Key, name: str, codec: Codec[T], made: T) -> Entry | None:
        if log.isEnabledFor(logging.INFO):
            log.info("[cache] %s was compiled: %s", name, self.host.nearest(name, key))
        try:
            payload = codec.dump(made)
        except Exception as error:  # as above
            log.info("[cache] %s cannot be kept: %s", name, error)
            payload = None
        if payload is None:
            self._memory.stats.add(unpersistable=1)
            return None
        return Entry.of(key, name, payload)


def configured(memory: ProgramCache[Any]) -> Tiers:
    """Return the tiers of the settings."""
    return Tiers(memory, host(), Tier("shared cache", _shared(), SHARED_LIMIT_S))


def host() -> Tier:
    """Return the host's tier of the settings."""
    name, chosen, bound_bytes = (
        config.get(knob) for knob in ("cache_name", "cache_dir", "cache_bytes")
    )

    def open_store() -> Store:
        root = host_directory(chosen)
        directory.prepare(root, shared=False)
        return Store(root / name, bound_bytes=bound_bytes)

    return Tier("host cache", None if name == "disabled" else open_store)


def _shared() -> Callable[[], Store] | None:
    root = os.path.expanduser(config.get("cache_shared"))
    return (lambda: Store(Path(root), shared=True)) if root else None


def host_directory(chosen: str) -> Path:
    """Return the directory that holds the host's caches by name: the chosen one or the default."""
    path = os.path.expanduser(chosen)
    return Path(path).absolute() if path else directory.default()
