"""Distances between rows against torch's CPU."""

from __future__ import annotations

import pytest

from tests.lowerings.opinfo import check


@pytest.mark.parametrize("name", ["cdist", "nn.functional.pdist"])
def test_opinfo(name: str) -> None:
    assert check(name, max_samples=3)
