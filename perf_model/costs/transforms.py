"""Fourier transforms, batch normalisation and complex helpers."""

from __future__ import annotations

import math

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.costs.registry import Cost, Kind, rule
from torchtpu.perf_model.program import Graph, Op


@rule("fft", kind=Kind.OTHER)
def _fft(op: Op, graph: Graph, _chip: Chip) -> Cost:
    """5 n log2(n) real operations per transform (Cooley and Tukey), on the vector ALUs."""
    length = math.prod(op.ints("fft_length")) or 1
    largest = max(graph.types[op.operands[0]].elements, graph.types[op.results[0]].elements)
    return Cost(valu_ops=5.0 * largest * math.log2(max(2, length)))


@rule("batch_norm_training", "batch_norm_inference", "batch_norm_grad", kind=Kind.OTHER)
def _batch_norm(op: Op, graph: Graph, _chip: Chip) -> Cost:
    return Cost(valu_ops=8.0 * graph.types[op.operands[0]].elements)
