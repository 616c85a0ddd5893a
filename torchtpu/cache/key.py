"""A cache key: a named list of everything that decides what a program compiles to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from torchtpu.cache.encoding import encode

Entries = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Key:
    """Names and texts in order; two keys are equal where all of them are."""

    entries: Entries

    @cached_property
    def digest(self) -> str:
        """The sha256 over all entries, in hexadecimal: the name of the cache entry."""
        return hashlib.sha256(encode(self.entries)).hexdigest()

    def differs_in(self, other: Entries) -> list[str]:
        """Return the names of the entries that the other key lacks or has otherwise."""
        mine, theirs = dict(self.entries), dict(other)
        return [n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n)]


def hashed(values: Iterable[tuple[str, object]]) -> Entries:
    """Return entries in which each value stands as the sha256 of its spelling.

    Raises Unencodable where a value has no canonical one.
    """
    return tuple((name, hashlib.sha256(encode(value)).hexdigest()) for name, value in values)
