"""Reductions, windows, sorts and scans."""

from __future__ import annotations

import math

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.costs.registry import Cost, Kind, rule
from torchtpu.perf_model.program import Graph, Op

_COMPARE_OPS = 4  # compare, two selects and the rotate of one exchange


@rule("reduce", kind=Kind.REDUCE)
def _reduce(op: Op, graph: Graph, _chip: Chip) -> Cost:
    """One reducer per input element; a reduced minor dimension also crosses lanes."""
    inputs = len(op.operands) // 2
    source = graph.types[op.operands[0]]
    elements = source.elements * max(1, op.int("region_ops", 1))
    minor = len(source.shape) - 1 in op.ints("dimensions")
    results = graph.types[op.results[0]].elements * inputs
    return Cost(valu_ops=elements, xlu_ops=results * 8.0 if minor else 0.0)


@rule("reduce_window", kind=Kind.REDUCE)
def _reduce_window(op: Op, graph: Graph, _chip: Chip) -> Cost:
    """One reducer per element of every window; a window as long as its axis is a scan of log2
    steps.
    """
    window = op.ints("window_dimensions")
    shape = graph.types[op.operands[0]].shape
    steps = 1.0
    for size, extent in zip(window, shape, strict=False):
        steps *= math.log2(extent) + 1 if size == extent > 8 else size
    inputs = len(op.results)
    return Cost(valu_ops=graph.types[op.results[0]].elements * steps * inputs)


@rule("select_and_scatter", kind=Kind.REDUCE)
def _select_and_scatter(op: Op, graph: Graph, _chip: Chip) -> Cost:
    """Select in every window of the operand, then add into the result."""
    window = math.prod(op.ints("window_dimensions"))
    windows = graph.types[op.operands[1]].elements
    return Cost(valu_ops=2.0 * windows * window + graph.types[op.results[0]].elements)


def _bitonic(rows: float, length: int, arrays: int) -> Cost:
    """log2(n) (log2(n) + 1) / 2 rounds of exchanges over all elements (bitonic network)."""
    rounds = max(1, math.ceil(math.log2(max(2, length))))
    exchanges = rows * length * rounds * (rounds + 1) / 2
    return Cost(valu_ops=exchanges * _COMPARE_OPS * arrays, xlu_ops=exchanges * arrays)


@rule("sort", kind=Kind.OTHER)
def _sort(op: Op, graph: Graph, _chip: Chip) -> Cost:
    type_ = graph.types[op.operands[0]]
    axis = op.int("dimension", -1)
    length = type_.shape[axis] if type_.shape else 1
    return _bitonic(type_.elements / max(1, length), length, len(op.operands))


@rule("chlo.top_k", "custom_call:mhlo.topk", "custom_call:TopK", kind=Kind.OTHER)
@rule("custom_call:ApproxTopK", "custom_call:PartialReduce", kind=Kind.OTHER)
def _top_k(op: Op, graph: Graph, _chip: Chip) -> Cost:
    """A sort of values and indices along the last dimension: an upper bound."""
    type_ = graph.types[op.operands[0]]
    length = type_.shape[-1] if type_.shape else 1
    return _bitonic(type_.elements / max(1, length), length, 2)
