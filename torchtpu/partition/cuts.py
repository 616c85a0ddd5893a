"""Where to cut: at the ends of repeats, and at narrow points of what is long without any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from torchtpu.partition.repeats import Stretch, stretches

LOST_PER_CROSSING = 2  # nodes outside the repeats that one value less between them is worth


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to cut, in nodes.

    Measured on XLA:CPU: a node takes 2 to 4 ms to compile and 0.1 MB while the process lives, a
    launch costs up to 0.3 ms. Both grow in proportion to nodes, so only repetition pays; the bound
    on a part is for compilers that are less patient.
    """

    whole: int = 1000  # programs up to this stay as they are
    largest_part: int = 2000
    smallest_part: int = 64  # shorter periods are joined
    saved: int = 128  # by a repetition, or it is not worth its launches


class Row(Protocol):
    """Nodes in a row, such as a `Graph`: signatures, equal for equal nodes, and what crosses."""

    signatures: np.ndarray[Any, Any]

    def crossing(self) -> np.ndarray[Any, Any]:
        """Count, for a cut before each node, the values that only that cut makes outputs."""


class Cutter:
    """Finds the cuts of one sequence of nodes."""

    def __init__(self, graph: Row, limits: Limits) -> None:
        self._limits = limits
        self._crossing = graph.crossing()
        self._stretches = stretches(graph.signatures)

    def cuts(self, low: int, high: int) -> list[int]:
        """Return the places before `high` where a part of the nodes low to high starts."""
        best = max(
            (s.clipped(low, high) for s in self._stretches),
            key=lambda s: (s.saved, -s.period, -s.start),
            default=None,
        )
        if best is None or best.saved < self._limits.saved:
            return self._narrow(low, high)
        start, repeats = self._aligned(best)
        lengths = _lengths(best.period, repeats, self._limits.smallest_part)
        cuts = self.cuts(low, start) if start > low else []
        inner: list[int] = []
        for length in lengths:
            if not inner or length != lengths[0]:
                inner = [0] if length > best.period else self._relative(start, length)
            cuts += [start + offset for offset in inner]
            start += length
        return cuts + (self.cuts(start, high) if start < high else [])

    def _relative(self, start: int, length: int) -> list[int]:
        return [cut - start for cut in self.cuts(start, start + length)]

    def _aligned(self, stretch: Stretch) -> tuple[int, int]:
        """Return where the repeats start, and their number: few values cross, few nodes lost."""

        def cost(start: int) -> tuple[float, int]:
            repeats = (stretch.stop - start) // stretch.period
            cut = self._crossing[start : stretch.stop + 1 : stretch.period]
            lost = stretch.stop - stretch.start - repeats * stretch.period
            return LOST_PER_CROSSING * float(cut.mean()) + lost, start

        latest = stretch.stop - max(stretch.repeats - 1, 2) * stretch.period
        _, start = min(cost(s) for s in range(stretch.start, latest + 1))
        return start, (stretch.stop - start) // stretch.period

    def _narrow(self, low: int, high: int) -> list[int]:
        """Cut into parts of the largest size or less, each where few values cross."""
        largest = self._limits.largest_part
        cuts = [low]
        while high - cuts[-1] > largest:
            first, last = cuts[-1] + largest // 2, cuts[-1] + largest
            narrowest = self._crossing[first : last + 1][::-1].argmin()
            cuts.append(last - int(narrowest))
        return cuts


def _lengths(period: int, repeats: int, smallest: int) -> Sequence[int]:
    """Lengths of the parts that the repeats make: equal, of whole periods, none very short."""
    least = min(-(-smallest // period), repeats)
    joined = next((n for n in range(least, 2 * least) if repeats % n == 0), least)
    rest = repeats % joined * period
    return [joined * period] * (repeats // joined) + [rest] * (rest > 0)
