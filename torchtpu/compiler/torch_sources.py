"""The hash of torch's own sources, which its caches need: kept while no file changes."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from torchtpu.cache import Key
from torchtpu.cache.entry import Entry
from torchtpu.cache.tier import Tier
from torchtpu.private.torch import codecache

_HASHED = (".py", ".so", ".ld", ".cpp")  # what torch reads for it, and a few more


def prefetch(host: Tier) -> threading.Thread | None:
    """Give torch the hash that an earlier process computed, else compute it in a thread.

    It takes torch a third of a second of Python, which the first graph would wait for; a look at
    the sizes and times of the same files takes 15 ms.
    """
    torch_key: Any = codecache.torch_key
    key = Key((("torch sources", _signature()),))
    entry = host.read(key.digest)
    if entry is not None:
        with suppress(RuntimeError):  # somebody was quicker
            torch_key.set(entry.payload)
        return None

    def compute() -> None:
        host.write(Entry.of(key, "hash of torch's sources", torch_key()))

    thread = threading.Thread(target=compute, name="torchtpu-torch-key", daemon=False)
    thread.start()
    return thread


def _signature() -> str:
    """Return a hash over names, sizes and times of torch's source files."""
    digest = hashlib.sha256(torch.__version__.encode())
    for path in _files(os.path.dirname(torch.__file__)):
        about = os.stat(path)
        spelled = f"{path}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ctime_ns}\n"
        digest.update(spelled.encode())
    return digest.hexdigest()


def _files(folder: str) -> Iterator[str]:
    """Yield the sources of a package and of the packages in it, in order."""
    with os.scandir(folder) as found:
        items = sorted(found, key=lambda item: item.name)
    for item in items:
        if item.is_dir(follow_symlinks=False):
            if os.path.exists(f"{item.path}/__init__.py"):
                yield from _files(item.path)
        elif item.name.endswith(_HASHED):
            yield item.path
