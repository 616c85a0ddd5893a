"""All collectives against torch's gloo on CPU tensors: equal results."""

from __future__ import annotations

import pytest

from tests.distributed import conformance, world


@pytest.mark.parametrize("size", [2, 4])
def test_collectives_are_gloo_s(size: int) -> None:
    for rank, wrong in enumerate(world.results(conformance.mismatches, size)):
        assert not wrong, f"rank {rank}: " + "\n".join(wrong)
