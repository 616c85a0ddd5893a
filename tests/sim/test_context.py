"""What a framework tells the simulator, and what stands without it."""

from __future__ import annotations

import pytest

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.program import GraphBuilder
from torchtpu.sim.context import Context, context
from torchtpu.sim.device import SimDevice
from torchtpu.sim.memory import HbmAccount, OutOfHBM


class Ours(Exception):
    pass


def test_without_a_framework_errors_are_the_simulators_own() -> None:
    alone = Context()
    error = OutOfHBM(requested_bytes=2, in_use_bytes=0, capacity_bytes=1, chip="v5e")
    assert alone.full(error) is error
    assert alone.user_line() == ""
    alone.storage(object(), 1)


def test_the_error_and_the_storages_are_the_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[object, int]] = []
    monkeypatch.setattr(context, "on_full", lambda error: Ours(*error.details))
    monkeypatch.setattr(context, "on_storage", lambda holder, size: told.append((holder, size)))
    builder = GraphBuilder()
    x = builder.input((1 << 16, 8), "f32")
    tall = builder.op("transpose", (x,), (8, 1 << 16), "f32", permutation=(1, 0))
    wide = (1 << 16, 1 << 16)
    square = builder.op("dot_general", (x, tall), wide, "f32", lhs_contract=(1,), rhs_contract=(0,))
    graph = builder.build((builder.op("reduce", (square, x), (), "f32", dimensions=(0, 1)),))
    with pytest.raises(Ours, match=r"65536x65536xf32 = 16\.00 GiB each, of dot_general"):
        SimDevice(chips.load("v5e")).admit(graph)
    account = HbmAccount(capacity_bytes=1, chip="v5e", enforce=False, on_storage=context.storage)
    account.allocate(3, "holder")
    assert told == [("holder", 3)]
    assert account.quiet_bytes < 0
