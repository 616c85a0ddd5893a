"""Seconds of one stage along one axis: an all-gather's chain of steps, an all-to-all's blocks."""

from __future__ import annotations

from torchtpu.perf_model.network.footprint import AxisSpan


def step_bytes(span: AxisSpan, piece_bytes: float) -> list[float]:
    """Bytes that a member sends each way in each step of an all-gather along an axis.

    Of an even number, the piece of the opposite member comes half from either side.
    """
    steps = [piece_bytes] * ((span.count - 1) // 2)
    return steps if span.count % 2 else [*steps, piece_bytes / 2]


def step_links(span: AxisSpan) -> list[int]:
    """Links of each step, in strides: one on a ring; on a line two, but n - 1 on the whole way."""
    steps = span.count // 2
    if span.ring:
        return [1] * steps
    return [2] * (steps - 1 + span.count % 2) + [1] * (1 - span.count % 2)


def chain_s(span: AxisSpan, piece_s: float, hop_s: float, chunks: int) -> float:
    """Seconds of an all-gather along an axis; piece_s: those that a member's piece takes on a link.

    A step goes over `stride` links one after the other, which as many groups may share. The next
    link begins when it is free and the first chunk has come: cut through within a step, whole at a
    member, which forwards it. Or the last chunk of a piece waits for those before it only once.
    """
    shared = 1 if span.ring else 2
    piece = piece_s * shared
    hop = hop_s * span.stride / span.sharing
    served: list[float] = []
    waits: list[float] = []
    for size, links in zip(step_bytes(span, piece), step_links(span), strict=True):
        served += [size] * span.sharing
        waits += [links * hop] * (span.sharing - 1) + [links * hop + piece / chunks]
    end = step_links(span)[-1] * hop
    crowded = sum(max(pair) for pair in zip(served[:-1], waits[:-1], strict=True)) + served[-1]
    return max(crowded, sum(waits[:-1]) + served[0]) + end


def exchange_crossings(span: AxisSpan) -> list[float]:
    """Blocks that cross the busiest directed link of an all-to-all along an axis, by their distance
    in steps from 1 on. They add to n^2 / 8 on a ring of even n, n^2 / 4 on a line.
    """
    n, middle = span.count, span.count // 2
    if not span.ring:
        return [float(min(d, n - d, middle)) for d in range(1, n)]
    counts = [float(d) for d in range(1, middle + 1)]
    if n % 2 == 0:
        counts[-1] /= 2
    return counts


def ring_exchange_s(span: AxisSpan, block_s: float, hop_s: float) -> float:
    """Blocks go link by link, the farthest first; a round of links ends when the last block of the
    round is through, or when the first one of the next round has come, whichever is later.
    """
    farthest = span.count // 2
    half = 0.5 if span.count % 2 == 0 else 0.0  # of the block for the opposite member
    hop = hop_s * span.stride / span.sharing
    each = [(farthest - k - half) * block_s for k in range(farthest)]
    rounds = [served for served in each for _ in range(span.sharing)]
    return sum(max(served, hop) for served in rounds[:-1]) + rounds[-1] + hop


def line_exchange_s(span: AxisSpan, block_s: float, hop_s: float) -> float:
    """Blocks from one member after the other cross each link, those of its own end first. A batch
    crosses when the one before has, and when its first block has come from the link before.
    """
    n, hop, block = span.count, hop_s * span.stride, block_s * span.sharing
    last = 0.0
    begins: list[float] = []  # when each batch begins to cross the link before
    for link in range(n - 1):
        length, free, crossing = (n - 1 - link) * block, 0.0, []
        for came in (0.0, *(begin + hop for begin in begins)):
            crossing.append(max(free, came))
            free = crossing[-1] + length
        begins, last = crossing, max(last, free + hop)
    return last
