"""The file format: whatever byte is changed, it is noticed."""

from __future__ import annotations

import io

import pytest

from torchtpu.cache.entry import BadEntry, Entry, pack, read_about, unpack

ENTRY = Entry(
    digest="d" * 64, name="add", entries=(("jax", "1"),), created_s=12.5, payload=b"code" * 20
)
DATA = pack(ENTRY)


def test_what_was_packed_comes_back() -> None:
    assert unpack(DATA) == ENTRY
    empty = Entry(digest="", name="\u00e9", entries=(), created_s=0.0)
    assert unpack(pack(empty)) == empty


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    for position in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[position] ^= 1 << bit
        with pytest.raises(BadEntry):
            unpack(bytes(damaged))


def test_every_truncation_and_anything_more_is_noticed() -> None:
    for length in range(len(DATA)):
        with pytest.raises(BadEntry):
            unpack(DATA[:length])
    with pytest.raises(BadEntry, match="expected"):
        unpack(DATA + b"\0")


def test_a_list_needs_no_payload() -> None:
    assert read_about(io.BytesIO(DATA)) == Entry(
        digest=ENTRY.digest, name="add", entries=ENTRY.entries, created_s=12.5
    )
    with pytest.raises(BadEntry):
        read_about(io.BytesIO(DATA[:70]))
    with pytest.raises(BadEntry, match="header"):
        read_about(io.BytesIO(DATA[:52] + b"not json" * 20))
