"""The in-process compile cache: LRU and counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtpu.cache import ProgramCache, mappings, memory


def test_the_least_recently_used_entry_goes_first() -> None:
    cache: ProgramCache[str] = ProgramCache(capacity=2)
    for key in ("a", "b", "a", "c"):  # b is the oldest when c comes
        cache.get(key, key.upper)
    made = []
    for key in ("a", "c", "b"):
        cache.get(key, lambda key=key: made.append(key) or key)  # type: ignore[misc,func-returns-value]
    assert made == ["b"]
    assert cache.stats.evictions == 2


def test_counts_tell_requests_hits_and_compilations() -> None:
    cache: ProgramCache[int] = ProgramCache(capacity=8)
    stats = cache.stats

    def make(name: str) -> int:
        stats.compiled(name, 0.5)
        return 0

    for key in (1, 1, 2):
        cache.get(key, lambda key=key: make(f"op{key}"))  # type: ignore[misc]
    assert (stats.requests, stats.hits, stats.compilations) == (3, 1, 2)
    assert stats.compile_s == 1
    assert stats.per_program == {"op1": 1, "op2": 1}


def test_a_failed_compile_is_no_entry() -> None:
    cache: ProgramCache[int] = ProgramCache(capacity=8)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get("k", fail)
    assert cache.get("k", lambda: 3) == 3


def test_clear_forgets_entries_and_counts() -> None:
    cache: ProgramCache[int] = ProgramCache(capacity=8)
    cache.get("k", lambda: 1)
    cache.clear()
    assert cache.stats.requests == 0
    assert cache.get("k", lambda: 2) == 2


def test_half_of_the_programs_go_when_mappings_get_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_LOOKS", ((0.25, 4), (1.0, 2)))
    released = []
    cache: ProgramCache[int] = ProgramCache(8, [lambda: released.append("all")])
    for key in range(4):
        cache.add(key, key)
    assert (cache.stats.evictions, released) == (0, [])
    monkeypatch.setattr(mappings, "share_in_use", lambda: 0.8)
    for key in range(4, 8):
        cache.add(key, key)
    assert (cache.stats.evictions, released) == (4, ["all"])
    assert [cache.find(key) for key in range(8)] == [None] * 4 + [4, 5, 6, 7]


def test_mappings_are_looked_at_more_often_as_they_get_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    cache: ProgramCache[int] = ProgramCache(10_000)

    def look() -> float:
        looked.append(entry)
        return 0.1 if entry < 200 else 0.3

    monkeypatch.setattr(mappings, "share_in_use", look)
    for entry in range(400):
        cache.add(entry, entry)
    assert looked == [127, 255, *range(271, 400, 16)]


def test_off_linux_no_mappings_are_in_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert 0 < mappings.share_in_use() < 1 or not mappings._LIMIT.exists()
    monkeypatch.setattr(mappings, "_LIMIT", tmp_path / "none")
    assert mappings.share_in_use() == 0
