"""Collectives as messages between pairs, for platforms that run them as they are written.

A compiler for chips plans an all-reduce over its links. XLA on the CPU hands it to gloo, whose ring
takes 2 (n - 1) steps of which each wakes every process, and copies its input first. Here small
arrays go log2(n) times to a partner, large ones in pieces that stay in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import add, sub, xor
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
Groups = Sequence[Sequence[int]]
Move = Callable[[Array, Sequence[tuple[int, int]]], Array]  # along (from, to) pairs of devices

PIECE_BYTES = 2 << 20
SMALL_BYTES = 256 << 10  # up to here a whole array goes to each partner
_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": jnp.add,
    "avg": jnp.add,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "product": jnp.multiply,
    "band": jnp.bitwise_and,
    "bor": jnp.bitwise_or,
    "bxor": jnp.bitwise_xor,
}


class Exchange:
    """What the members of groups of one size do together; the groups part all devices."""

    def __init__(self, groups: Groups, move: Move, gather: Callable[[Array], Array], device: Array):
        """Take the groups, what moves arrays, what gathers pieces, and this device's number."""
        self._groups = groups
        self._size = len(groups[0])
        self._move = move
        self._gather = gather
        places = np.zeros(sum(len(g) for g in groups), np.int32)
        for group in groups:
            places[list(group)] = np.arange(self._size)
        is_plain = (places == np.arange(len(places))).all()
        self._place = device if is_plain else jnp.asarray(places)[device]

    def all_reduce(self, array: Array, reduce: str) -> Array:
        """Reduce flat arrays of any length; everybody has the same bits in the end."""
        combine, size = _COMBINE[reduce], self._size
        is_small = array.nbytes <= SMALL_BYTES
        if size == 2 or (is_small and size & (size - 1) == 0):
            return _by_pieces(array, lambda piece: self._double(piece, combine))
        if is_small:
            return self._fold(array, combine)
        return _by_pieces(array, lambda piece: self._around(piece, combine), size)

    def _double(self, array: Array, combine: Any) -> Array:
        """Exchange whole arrays with partners 1, 2, 4 ... places away."""
        step = 1
        while step < self._size:
            array = combine(array, self._sent(array, partial(xor, step)))
            step *= 2
        return array

    def _fold(self, array: Array, combine: Any) -> Array:
        """Gather all arrays, and reduce them in the order of the group."""
        rows = self._gather(array).reshape(self._size, -1)
        made = rows[0]
        for row in rows[1:]:
            made = combine(made, row)
        return made

    def _around(self, array: Array, combine: Any) -> Array:
        """Reduce a part per member, and gather the parts."""
        return self._gather(self._reduced_part(array, combine))

    def reduce_scatter(self, array: Array, reduce: str) -> Array:
        """Reduce flat arrays of `size` parts, of which each member keeps its own."""
        return self._reduced_part(array, _COMBINE[reduce])

    def _reduced_part(self, array: Array, combine: Any) -> Array:
        made = self._part(array, self._place)
        for step in range(1, self._size):
            sent = self._part(array, (self._place + step) % self._size)
            made = combine(made, self._sent(sent, partial(add, step)))
        return made

    def all_to_all(self, array: Array, room: Array | None = None) -> Array:
        """Send part i of flat arrays to member i; parts stand in the result by sender.

        room: an array whose memory the result may take over.
        """
        size = self._size
        length = array.size // size
        piece = max(1, min(length, PIECE_BYTES // array.dtype.itemsize))

        def exchanged(made: Array, start: Array, count: int) -> Array:
            for turn in range(size):  # the partners of a turn exchange, some with themselves
                at = ((turn - self._place) % size) * length + start
                part = lax.dynamic_slice(array, (at,), (count,))
                if size > 2 or turn == 1:  # of two, both are with themselves in turn 0
                    part = self._sent(part, partial(sub, turn))
                made = lax.dynamic_update_slice(made, part, (at,))
            return made

        count, rest = divmod(length, piece)
        made = array if room is None else room
        if count > 1:
            made = lax.fori_loop(0, count, lambda n, a: exchanged(a, n * piece, piece), made)
        elif count:
            made = exchanged(made, 0, piece)
        return exchanged(made, count * piece, rest) if rest else made

    def _part(self, array: Array, place: Array) -> Array:
        length = array.size // self._size
        return lax.dynamic_slice(array, (place * length,), (length,))

    def _sent(self, array: Array, to: Callable[[int], int]) -> Array:
        pairs = [
            (device, group[to(place) % self._size])
            for group in self._groups
            for place, device in enumerate(group)
        ]
        return self._move(array, pairs)


def _by_pieces(array: Array, change: Callable[[Array], Array], multiple: int = 1) -> Array:
    """Change an array piece by piece, in place; lengths are multiples of `multiple`."""
    length = PIECE_BYTES // array.dtype.itemsize // multiple * multiple
    count, rest = divmod(array.size, length)

    def one(n: Array, made: Array) -> Array:
        piece = lax.dynamic_slice(made, (n * length,), (length,))
        return lax.dynamic_update_slice(made, change(piece), (n * length,))

    if count == 1 and not rest:
        return change(array)
    made = lax.fori_loop(0, count, one, array) if count else array
    if not rest:
        return made
    last = array[count * length :]
    padded = jnp.pad(last, (0, -rest % multiple))
    changed = change(padded)[:rest]
    return lax.dynamic_update_slice(made, changed, (count * length,)) if count else changed
