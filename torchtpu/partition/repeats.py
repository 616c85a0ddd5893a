"""Repetition in a sequence of signatures: stretches that are one period over and over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Signatures = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Positions `start` to `stop`, each equal to the one a period later if that is inside."""

    start: int
    stop: int
    period: int

    @property
    def repeats(self) -> int:
        """How many whole periods fit."""
        return (self.stop - self.start) // self.period

    @property
    def saved(self) -> int:
        """Nodes that need not be compiled where the period is compiled once."""
        return (self.repeats - 1) * self.period

    def clipped(self, low: int, high: int) -> Stretch:
        """Return the piece between two positions."""
        start, stop = max(self.start, low), min(self.stop, high)
        return Stretch(start, max(start, stop), self.period)


def stretches(signatures: Signatures) -> list[Stretch]:
    """Return the maximal stretches of at least two periods, for every period that is frequent."""
    found = []
    for period in sorted(_periods(signatures)):
        equal = signatures[:-period] == signatures[period:]
        edges = np.flatnonzero(np.diff(equal, prepend=False, append=False))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if stop - start >= period:
                found.append(Stretch(start, stop + period, period))
    return found


def _periods(signatures: Signatures) -> set[int]:
    """Distances between equal windows that come often enough to make up a stretch.

    Windows of 1, 2, 4, ... positions are ranked by the doubling of Karp, Miller and Rosenberg
    (1972), so a period with repetition inside shows in the windows that are longer than that.
    """
    periods: set[int] = set()
    for ranks in _windows(signatures):
        order = np.argsort(ranks, kind="stable")
        again = ranks[order[1:]] == ranks[order[:-1]]
        distances, counts = np.unique(np.diff(order)[again], return_counts=True)
        periods.update(distances[2 * counts >= distances].tolist())
    return periods


def _windows(signatures: Signatures) -> Iterator[Signatures]:
    """Yield the ranks of all windows of 1, 2, 4, ... positions while some are equal."""
    ranks, width = signatures, 1
    while len(ranks) > width:
        yield ranks
        pairs = ranks[:-width] * (int(ranks.max()) + 1) + ranks[width:]
        values, ranks = np.unique(pairs, return_inverse=True)
        if len(values) == len(ranks):
            return
        width *= 2
