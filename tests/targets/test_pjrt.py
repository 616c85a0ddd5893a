"""Launches on a PJRT client: asynchronous, and ahead of the device by a bounded number."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch

from torchtpu import executor
from torchtpu.targets import pjrt

pytestmark = pytest.mark.usefixtures("strict")


class Token:
    """Counts who waits for it."""

    def __init__(self, waits: list[int], number: int) -> None:
        self._waits, self._number = waits, number

    def block_until_ready(self) -> None:
        self._waits.append(self._number)


def test_the_host_waits_for_the_launch_a_bounded_number_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.ones(3, device="tpu")
    assert (x + 0).tolist() == [1, 1, 1]  # compiled by now: later ones are launched at once
    target: Any = executor.current().target
    waits: list[int] = []
    keep_up, marks = target._keep_up, count()
    monkeypatch.setattr(target, "_marks", type(target._marks)())
    monkeypatch.setattr(target, "_keep_up", lambda _: keep_up(Token(waits, next(marks))))
    stride = pjrt._STRIDE
    for _ in range(pjrt.AHEAD + 4 * stride):
        x = x + 0
    assert len(waits) in (4, 5)
    assert waits == list(range(next(marks) - pjrt.AHEAD // stride))
    assert x.tolist() == [1, 1, 1]
