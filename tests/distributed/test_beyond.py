"""Averages, coalescing, functional collectives, groups, objects, works, and mistakes."""

from __future__ import annotations

from tests.distributed import beyond, world


def test_beside_collectives() -> None:
    """Each function of beyond.py, in every rank."""
    assert world.results(beyond.every, 3, beyond.NAMES) == [{}] * 3
