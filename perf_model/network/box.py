"""A closed walk through all places of a box of chips, each step to a neighbour."""

from __future__ import annotations

import math
from collections.abc import Sequence

Place = tuple[int, ...]


def has_cycle(sizes: Sequence[int]) -> bool:
    """Whether a box has such a walk: two axes longer than one, an even number of places."""
    return sum(size > 1 for size in sizes) > 1 and math.prod(sizes) % 2 == 0


def cycle(sizes: Sequence[int]) -> list[Place]:
    """The places of a box in the order of a closed walk. The box must have one (`has_cycle`)."""
    long = [axis for axis, size in enumerate(sizes) if size > 1]
    places: list[Place] = [(i,) for i in range(sizes[long[0]])]
    for axis in long[1:-1]:
        places = _snake(places, sizes[axis])
    found = []
    for row, column in _grid(len(places), sizes[long[-1]]):
        inner = dict(zip(long, (*places[row], column), strict=True))
        found.append(tuple(inner.get(axis, 0) for axis in range(len(sizes))))
    return found


def _snake(places: Sequence[Place], size: int) -> list[Place]:
    """A walk through places x size: along the places, forth and back."""
    found: list[Place] = []
    for column in range(size):
        line = places if column % 2 == 0 else places[::-1]
        found += [(*place, column) for place in line]
    return found


def _grid(rows: int, columns: int) -> list[tuple[int, int]]:
    """A closed walk through rows x columns: back and forth over the rows, home on column 0."""
    if rows % 2:
        return [(row, column) for column, row in _grid(columns, rows)]
    found = [(0, 0)]
    for row in range(rows):
        line = range(1, columns)
        found += [(row, column) for column in (line if row % 2 == 0 else reversed(line))]
    return [*found, *((row, 0) for row in range(rows - 1, 0, -1))]
