"""How a collective over several axes splits its data: colours, each with an order of the axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchtpu.perf_model.network.box import has_cycle
from torchtpu.perf_model.network.footprint import AxisSpan

_MARGIN = 0.01  # a ring through the box has to be this much faster to be preferred
_DIGITS = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class Colour:
    """A part of the data (`share` of the whole) and the order in which it gathers the axes.

    `order` holds positions in the footprint's spans; a reduce-scatter takes it backwards.
    """

    order: tuple[int, ...]
    share: float


def ring_link_bytes(span: AxisSpan, piece_bytes: float) -> float:
    """Bytes on each directed link of one group's all-gather along an axis, a piece per member.

    A ring sends half of what is missing each way: (n - 1) / 2 pieces. A line is a ring laid to and
    fro (0, 2, 4, ..., 5, 3, 1), two of whose steps share every link: n - 1 pieces.
    """
    return (span.count - 1) * piece_bytes / (2 if span.ring else 1)


def phase_loads(spans: Sequence[AxisSpan], order: Sequence[int]) -> list[float]:
    """Bytes on the directed links of the axis of each phase when one byte is gathered in the given
    order, times the groups that share the links.
    """
    loads = []
    piece = 1.0 / math.prod(span.count for span in spans)
    for position in order:
        span = spans[position]
        loads.append(ring_link_bytes(span, piece) * span.sharing)
        piece *= span.count
    return loads


def used_spans(kind: str, spans: tuple[AxisSpan, ...]) -> tuple[AxisSpan, ...]:
    """The axes as the collective uses them: as they are, or one ring through the whole box.

    The TPU compiler gathers and scatters over several axes at once only where all of them wrap
    (2DAllGatherOnMajorDim) or have two chips; elsewhere (4x4, 8x16, 2x4x4) it lays one ring through
    all chips (1DAllGather, StrategyRing), which uses two links of each. An all-reduce keeps its
    axes (StrategyND on 8x16 and 2x2x4) unless the ring is faster (UniDirection1DRing on 2x4).
    """
    if len(spans) < 2 or kind == "all_to_all" or all(span.ring for span in spans):
        return spans
    dense = all(span.stride == 1 for span in spans)
    if not dense or not has_cycle([span.count for span in spans]):
        return spans
    count = math.prod(span.count for span in spans)
    name = "".join(span.axis for span in spans)
    through = (AxisSpan(axis=name, count=count, stride=1, sharing=1, ring=True),)
    if kind in {"all_gather", "reduce_scatter"}:
        return spans if all(span.count == 2 for span in spans) else through
    return through if _bound(through) < _bound(spans) * (1 - _MARGIN) else spans


def _bound(spans: tuple[AxisSpan, ...]) -> float:
    """Time of a gather of one byte in bytes of a link: the slowest colour of each phase, added."""
    colours = plan(spans)
    loads = np.array([phase_loads(spans, colour.order) for colour in colours])
    shares = np.array([colour.share for colour in colours])
    return float((shares[:, None] * loads).max(axis=0).sum())


@functools.lru_cache(maxsize=1024)
def plan(spans: tuple[AxisSpan, ...]) -> tuple[Colour, ...]:
    """One colour per axis: the rotations of the axes, with the shares that end soonest.

    That is the strategy which the TPU compiler names for a torus (colors:3 phases:3, dim_used
    {0 1 2},{1 2 0},{2 0 1}): in each phase every colour has an axis for itself. The compiler's
    shares on unequal axes are not public.
    """
    count = len(spans)
    orders = [tuple((first + i) % count for i in range(count)) for first in range(count)]
    shares = [1.0 / count] * count
    if len({(span.count, span.stride, span.ring) for span in spans}) > 1:
        shares = _best_shares(np.array([phase_loads(spans, order) for order in orders]))
    return tuple(
        Colour(order=order, share=share)
        for order, share in zip(orders, shares, strict=True)
        if share > 0
    )


def _best_shares(loads: npt.NDArray[np.float64]) -> list[float]:
    """Shares that add to one, with which the slowest colours of all phases take least together.

    loads: [colour, phase]. A linear programme in the shares and the time of each phase.
    """
    from scipy.optimize import linprog  # takes a third of a second to import

    count = len(loads)
    limits = np.zeros((count * count, 2 * count))
    for colour in range(count):
        for phase in range(count):
            row = limits[colour * count + phase]
            row[colour], row[count + phase] = loads[colour, phase], -1.0
    found = linprog(
        c=[0.0] * count + [1.0] * count,
        A_ub=limits,
        b_ub=np.zeros(count * count),
        A_eq=[[1.0] * count + [0.0] * count],
        b_eq=[1.0],
    )
    shares = np.round(np.clip(found.x[:count], 0.0, 1.0), _DIGITS)
    return [float(share) for share in shares / shares.sum()]
