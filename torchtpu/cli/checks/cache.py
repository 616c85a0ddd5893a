"""Section cache: where compiled programs are kept, how many, and whether they can be read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from torchtpu import config
from torchtpu.cache.directory import Unusable
from torchtpu.cache.entry import VERSION, BadEntry
from torchtpu.cache.store import Found, Store
from torchtpu.cache.tiers import host_directory
from torchtpu.cli.checks.row import Row, note, ok, warn
from torchtpu.errors import ConfigError
from torchtpu.perf_model.quantities import seconds, size

T = TypeVar("T")

_PATIENCE_S = 0.2  # for counting, and for reading heads; `torchtpu-cache verify` reads everything
_WITHOUT = "programs are compiled anew by every process"


def rows(_limit_s: float) -> list[Row]:
    """Return what the host's cache and the one between hosts are like."""
    try:
        name: str = config.get("cache_name")
        config.get("cache_bytes")
    except ConfigError as error:
        return [note("cache", f"not looked at: {error} (see environment)")]
    shared = os.path.expanduser(config.get("cache_shared"))
    found = [_disabled() if name == "disabled" else _host(name)]
    return found + ([_store("shared cache", Path(shared), shared=True)] if shared else [])


def _disabled() -> Row:
    return note("host cache", f"TORCH_TPU_TIER2_COMPILATION_CACHE=disabled: {_WITHOUT}")


def _host(name: str) -> Row:
    try:
        path = host_directory(config.get("cache_dir")) / name
    except Unusable as error:
        return warn("host cache", f"{error}; {_WITHOUT}", "set TORCHTPU_CACHE_DIR to a directory")
    return _store("host cache", path, shared=False)


def _store(what: str, path: Path, *, shared: bool) -> Row:
    """Look at a directory without making it."""
    is_there = (path / f"v{VERSION}").is_dir()
    if not os.access(path / f"v{VERSION}" if is_there else _parent(path), os.W_OK | os.X_OK):
        return warn(
            what,
            f"{path}: cannot be written to, so {_WITHOUT}",
            f"make it writable, or set {'the shared directory' if shared else 'TORCHTPU_CACHE_DIR'}"
            " to another one",
        )
    if not is_there:
        return ok(what, f"{path}: not there yet; the first compile makes it")
    try:
        return _contents(what, path, Store(path, shared=shared), bounded=not shared)
    except (Unusable, OSError) as error:
        return warn(what, f"{error}", f"mend {path}; until then {_WITHOUT}")


def _parent(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists())


def _contents(what: str, path: Path, store: Store, *, bounded: bool) -> Row:
    found, is_all = _taken(store.list())
    text = f"{path}: {len(found)} programs, {size(sum(f.nbytes for f in found))}"
    text += "" if is_all else f", and more (not counted after {seconds(_PATIENCE_S)})"
    bound: int = config.get("cache_bytes")
    if bounded:
        text += f", at most {size(bound)}" if bound else ", no bound"
    bad = [f for f, is_bad in _taken((f, _is_bad(store, f)) for f in found)[0] if is_bad]
    if not bad:
        return ok(what, text)
    return warn(
        what,
        f"{text}; {len(bad)} not readable, such as {bad[0].path.name}",
        f"torchtpu-cache verify --delete --dir {path}",
    )


def _taken(items: Iterator[T]) -> tuple[list[T], bool]:
    """Return what comes before patience ends, and whether that is all."""
    end = time.monotonic() + _PATIENCE_S
    taken = []
    for item in items:
        taken.append(item)
        if time.monotonic() > end:
            return taken, False
    return taken, True


def _is_bad(store: Store, found: Found) -> bool:
    try:
        with suppress(FileNotFoundError):  # removed by another process meanwhile
            store.about(found)
    except (BadEntry, OSError):
        return True
    return False
