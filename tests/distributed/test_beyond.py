"""Averages, coalescing, functional collectives, groups, objects, works, and mistakes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import daily
from tests.distributed import beyond, world

pytestmark = pytest.mark.timeout(480)  # several processes that all import and compile


def test_beside_collectives() -> None:
    """Each function of beyond.py, in every rank."""
    assert world.results(beyond.every, 3, beyond.NAMES) == [{}] * 3


def test_a_program_is_compiled_by_one_rank_of_a_host() -> None:
    """The others wait for its entry in the host's cache, and load it."""
    compiled = Counter[str]()
    for counts in world.results(beyond.compiled_by, 8 if daily.ALL else 4):
        compiled.update(counts)
    assert compiled
    assert set(compiled.values()) == {1}, compiled
