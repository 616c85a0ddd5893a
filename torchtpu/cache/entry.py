"""The file of a cache entry: magic, lengths, checksum, a header in JSON, the payload.

8 bytes   magic, with the version of this format
4, 8      lengths of header and payload, little endian
32        sha256 over all of the file but these 32 bytes
...       header: the key's digest and entries, the program's name, when it was made
...       payload: what the target made of the executable
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from torchtpu.cache.key import Entries, Key

VERSION = 1
MAGIC = b"TTPUEX%02d" % VERSION
_LENGTHS = struct.Struct("<IQ")
_START = len(MAGIC) + _LENGTHS.size
_HEADER = _START + hashlib.sha256().digest_size


class BadEntry(ValueError):
    """A file is no intact entry; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A compiled program as it lies on disk."""

    digest: str  # of its key
    name: str
    entries: Entries
    created_s: float  # since the epoch
    payload: bytes = b""

    @classmethod
    def of(cls, key: Key, name: str, payload: bytes) -> Entry:
        """Return a new entry of a key."""
        return cls(
            digest=key.digest,
            name=name,
            entries=key.entries,
            created_s=time.time(),
            payload=payload,
        )


def pack(entry: Entry) -> bytes:
    """Return the bytes of an entry's file."""
    about = {
        "digest": entry.digest,
        "name": entry.name,
        "entries": entry.entries,
        "created_s": entry.created_s,
    }
    header = json.dumps(about, separators=(",", ":")).encode()
    start = MAGIC + _LENGTHS.pack(len(header), len(entry.payload))
    return b"".join((start, _checksum(start, header, entry.payload), header, entry.payload))


def unpack(data: bytes) -> Entry:
    """Return the entry in a file's bytes; BadEntry unless every byte is as it was written."""
    header_bytes, payload_bytes = _lengths(data)
    if len(data) != _HEADER + header_bytes + payload_bytes:
        expected = _HEADER + header_bytes + payload_bytes
        raise BadEntry(f"expected {expected} bytes, got {len(data)}")
    body = memoryview(data)[_HEADER:]
    header, payload = body[:header_bytes], body[header_bytes:]
    if _checksum(data[:_START], header, payload) != data[_START:_HEADER]:
        raise BadEntry("the checksum is wrong")
    return replace(_about(bytes(header)), payload=bytes(payload))


def read_about(file: BinaryIO) -> Entry:
    """Read an entry without its payload and without a check of its sum, for lists."""
    header_bytes, _ = _lengths(file.read(_HEADER))
    return _about(file.read(header_bytes))


def _lengths(data: bytes) -> tuple[int, int]:
    if len(data) < _HEADER or not data.startswith(MAGIC):
        raise BadEntry(f"expected a file that starts with {MAGIC!r}, got {data[:8]!r}")
    header, payload = _LENGTHS.unpack_from(data, len(MAGIC))
    return header, payload


def _checksum(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _about(header: bytes) -> Entry:
    try:
        about: dict[str, Any] = json.loads(header)
        return Entry(
            digest=about["digest"],
            name=about["name"],
            entries=tuple((str(n), str(v)) for n, v in about["entries"]),
            created_s=float(about["created_s"]),
        )
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise BadEntry(f"the header does not parse: {error}") from error
