"""All collectives against torch's gloo on CPU tensors: equal results.

TORCHTPU_TEST_ALL=1 runs all cases in worlds of 2, 4 and 8 and in groups of some ranks.
"""

from __future__ import annotations

import os

import pytest

from tests.distributed import conformance, world

pytestmark = pytest.mark.timeout(480)  # several processes that all import and compile

_ALL = bool(os.environ.get("TORCHTPU_TEST_ALL"))
_WORLDS = {"2 of 2": (2, [0, 1], 1), "3 of 4": (4, [0, 2, 3], 1 if _ALL else 6)}
if _ALL:
    _WORLDS |= {"4 of 4": (4, [0, 1, 2, 3], 1), "8 of 8": (8, list(range(8)), 1)}


@pytest.mark.parametrize("name", _WORLDS)
def test_collectives_are_gloo_s(name: str) -> None:
    size, members, stride = _WORLDS[name]
    found = world.results(conformance.mismatches, size, stride, members, patience_s=900.0)
    for rank, wrong in enumerate(found):
        assert not wrong, f"rank {rank}: " + "\n".join(wrong)
