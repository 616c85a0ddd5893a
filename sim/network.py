"""Discrete events on links: messages queue at each link, first come first served.

A message is cut through: its head goes on to the next link after one latency, and it occupies each
link for its bytes at the rate of that link. Time is in integer picoseconds; equal times are served
in the order in which the messages were sent, so the same input gives the same picosecond.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from torchtpu.sim.clock import PICOSECONDS_PER_SECOND

Arrival = Callable[[int], None]
_Event = tuple[int, int, Sequence[int], int, int, int, Arrival]


class Network:
    """Links with a rate (bytes/s) and a latency (ps) each, and what is on its way.

    carried: bytes that each link has carried; busy_ps: how long it was occupied.
    """

    def __init__(self, rate: Sequence[int], latency_ps: Sequence[int]) -> None:
        self._rate, self._latency = rate, latency_ps
        self._free = [0] * len(rate)
        self.carried = [0] * len(rate)
        self.busy_ps = [0] * len(rate)
        self.now_ps = 0
        self.messages = 0
        self._events: list[_Event] = []

    def send(self, at_ps: int, path: Sequence[int], size_bytes: int, arrived: Arrival) -> None:
        """Put a message on a path at a time; `arrived(time)` is called when all of it is there."""
        self.messages += 1
        heapq.heappush(self._events, (at_ps, self.messages, path, 0, size_bytes, 0, arrived))

    def at(self, at_ps: int, action: Arrival) -> None:
        """Call `action(time)` at a time."""
        self.send(at_ps, (), 0, action)

    def run(self) -> int:
        """Work off all events; the time of the last one."""
        events, free, rates = self._events, self._free, self._rate
        while events:
            now, order, path, hop, size, tail, arrived = heapq.heappop(events)
            if hop == len(path):
                self.now_ps = now
                arrived(now)
                continue
            link = path[hop]
            begin = now if now > free[link] else free[link]
            length = -(-size * PICOSECONDS_PER_SECOND // rates[link])
            free[link] = begin + length
            self.carried[link] += size
            self.busy_ps[link] += length
            latency = self._latency[link]
            tail = max(begin + length, tail) + latency
            head = tail if hop + 1 == len(path) else begin + latency
            heapq.heappush(events, (head, order, path, hop + 1, size, tail, arrived))
        return self.now_ps
