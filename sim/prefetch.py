"""The order in which a compiler starts collectives: early, but not all at once.

A program written layer by layer gathers a layer's parameters just before it uses them. XLA's
scheduler moves such a gather up behind the one before it, so that it runs while that layer
computes; more than that would fill the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from torchtpu.perf_model.costs.registry import Kind
from torchtpu.perf_model.fusion import Schedule

_AHEAD = 1  # collectives that are started and not yet used while another is started early
_LOOKAHEAD = 4  # collectives among which one is sought that can go early
_MAX_ANCESTORS = 16  # kernels that may move up with a collective
_HEAVY = frozenset({Kind.MATMUL})


def prefetch_order(schedule: Schedule, collective: Sequence[bool]) -> list[int]:
    """The numbers of a schedule's kernels in the order in which the core meets them."""
    return _Order(schedule, collective).order()


class _Order:
    def __init__(self, schedule: Schedule, collective: Sequence[bool]) -> None:
        self._schedule, self._collective = schedule, collective
        self._producers = _producers(schedule)
        self._emitted: set[int] = set()
        self._order: list[int] = []
        self._early: set[int] = set()  # started early, not used so far
        self._pending = deque(n for n, is_one in enumerate(collective) if is_one)
        self._stuck: set[int] = set()  # collectives that wait for real work

    def order(self) -> list[int]:
        """All kernels, each once, after those it reads from."""
        for number in range(len(self._schedule.kernels)):
            if number in self._emitted:
                continue
            self._early.difference_update(self._producers[number])
            if not self._collective[number]:
                self._prefetch()
            if number not in self._emitted:
                self._emit(number)
        return self._order

    def _emit(self, number: int) -> None:
        self._emitted.add(number)
        self._order.append(number)

    def _prefetch(self) -> None:
        while self._pending and self._pending[0] in self._emitted:
            self._pending.popleft()
        if len(self._early) >= _AHEAD:
            return
        for number in list(self._pending)[:_LOOKAHEAD]:
            if number in self._emitted or number in self._stuck:
                continue
            ancestors = self._ancestors(number)
            if ancestors is None:
                self._stuck.add(number)
                continue
            for one in (*ancestors, number):
                self._emit(one)
            self._early.add(number)
            return

    def _ancestors(self, number: int) -> list[int] | None:
        """What must run before a collective, in order; None where that is real work."""
        found: set[int] = set()
        stack = list(self._producers[number])
        while stack:
            one = stack.pop()
            if one in self._emitted or one in found:
                continue
            heavy = self._schedule.kernels[one].kind in _HEAVY or self._collective[one]
            if heavy or len(found) >= _MAX_ANCESTORS:
                return None
            found.add(one)
            stack.extend(self._producers[one])
        return sorted(found)


def _producers(schedule: Schedule) -> list[tuple[int, ...]]:
    """For each kernel the numbers of those it reads from."""
    made_by: dict[int, int] = {}
    found = []
    for number, kernel in enumerate(schedule.kernels):
        reads = (made_by.get(schedule.source[value], -1) for value, _ in kernel.reads)
        found.append(tuple(sorted({n for n in reads if n >= 0})))
        for value, _ in kernel.writes:
            made_by[schedule.source[value]] = number
    return found
