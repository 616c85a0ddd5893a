"""Calls at once: each result is there, whatever the others do."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torchtpu.cli.checks.together import together


def test_results_errors_and_calls_that_block() -> None:
    meet, never = threading.Barrier(2), threading.Event()

    def meets() -> int:
        return meet.wait(60)

    def blocks() -> int:
        never.wait(60)
        return 0

    def breaks() -> int:
        raise ValueError("broken")

    calls: dict[str, Callable[[], int]] = {
        "blocks": blocks, "a": meets, "b": meets, "breaks": breaks,
    }  # fmt: skip
    found = together(calls, 1.0)
    never.set()
    assert list(found) == list(calls)
    assert sorted([found["a"], found["b"]]) == [0, 1]  # type: ignore[type-var]  # both are numbers
    assert isinstance(found["breaks"], ValueError)
    assert isinstance(found["blocks"], TimeoutError)
