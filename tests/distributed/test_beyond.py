"""Averages, coalescing, functional collectives, groups, objects, works, and mistakes."""

from __future__ import annotations

import pytest

from tests.distributed import beyond, world

pytestmark = pytest.mark.timeout(480)  # several processes that all import and compile


def test_beside_collectives() -> None:
    """Each function of beyond.py, in every rank."""
    assert world.results(beyond.every, 3, beyond.NAMES) == [{}] * 3
