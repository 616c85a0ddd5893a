"""The order of kernels: as the program has them, or so that memory is freed early.

XLA schedules for memory with a list scheduler that takes, of what is ready, the instruction that
frees most (ListMemoryScheduler in xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc), and
keeps the best of several orders. A weight gradient then runs as soon as it can, not after the whole
backward pass.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from torchtpu.perf_model.fusion import Kernel, Schedule
from torchtpu.perf_model.tiling import padded_bytes


def freeing(schedule: Schedule) -> Schedule:
    """Return a schedule whose kernels run in the order of a list scheduler; linear in its edges."""
    order = _List(schedule).order()
    return replace(schedule, kernels=tuple(schedule.kernels[n] for n in order))


class _List:
    """A list scheduler: of the kernels that are ready, the one that frees most goes first."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        graph, source = schedule.graph, schedule.source
        self._size = [padded_bytes(t) for t in graph.types]
        self._kept = {source[v] for v in graph.outputs} | (set(graph.inputs) - graph.donated)
        self._reads = [_values(k) for k in schedule.kernels]
        self._readers: dict[int, set[int]] = {}
        maker: dict[int, int] = {}
        for number, kernel in enumerate(schedule.kernels):
            for value in self._reads[number]:
                self._readers.setdefault(value, set()).add(number)
            maker.update((value, number) for value, _ in kernel.writes)
            maker.update((value, number) for value, _ in kernel.in_place)
        self._waits = [
            len({maker[v] for v in reads if v in maker and maker[v] != n})
            for n, reads in enumerate(self._reads)
        ]

    def order(self) -> list[int]:
        """Return the numbers of the kernels in the order in which they run."""
        ready = {n for n, waits in enumerate(self._waits) if not waits}
        heap = [(-self._gain(n), n) for n in ready]
        heapq.heapify(heap)
        order: list[int] = []
        done: set[int] = set()
        while heap:
            _, number = heapq.heappop(heap)
            if number in done:
                continue
            done.add(number)
            order.append(number)
            for changed in self._run(number, ready):
                heapq.heappush(heap, (-self._gain(changed), changed))
        rest = [n for n in range(len(self._schedule.kernels)) if n not in done]
        return order + rest

    def _gain(self, number: int) -> int:
        """Bytes that a kernel frees, less those that it makes."""
        freed = sum(
            self._size[v]
            for v in self._reads[number]
            if v not in self._kept and len(self._readers[v]) == 1
        )
        taken = {v for _, v in self._schedule.kernels[number].in_place}
        freed -= sum(self._size[v] for v in taken if v not in self._kept)
        return freed - sum(self._size[v] for v, _ in self._made(number))

    def _made(self, number: int) -> Sequence[tuple[int, int]]:
        return self._schedule.kernels[number].writes

    def _run(self, number: int, ready: set[int]) -> set[int]:
        """Note that a kernel has run; return the ready ones whose gain has changed."""
        changed: set[int] = set()
        for value in self._reads[number]:
            readers = self._readers[value]
            readers.discard(number)
            if len(readers) == 1:
                changed |= readers & ready
        kernel = self._schedule.kernels[number]
        made = {v for v, _ in (*kernel.writes, *kernel.in_place)}
        for reader in {r for v in made for r in self._readers.get(v, ())} - {number}:
            self._waits[reader] -= 1
            if not self._waits[reader]:
                ready.add(reader)
                changed.add(reader)
        return changed


def _values(kernel: Kernel) -> tuple[int, ...]:
    """What a kernel reads, and what it overwrites."""
    return tuple(dict.fromkeys([*(v for v, _ in kernel.reads), *(v for _, v in kernel.in_place)]))
