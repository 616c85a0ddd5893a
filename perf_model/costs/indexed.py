"""Gathers and scatters: one address per row, then the row's elements."""

from __future__ import annotations

import math

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.constants import constants
from torchtpu.perf_model.costs.registry import Cost, Kind, rule
from torchtpu.perf_model.program import Graph, Op


def index_rows(op: Op, graph: Graph, indices: int) -> int:
    """Number of index vectors of a gather or scatter."""
    shape = list(graph.types[indices].shape)
    axis = op.int("index_vector_dim", len(shape))
    if axis < len(shape):
        del shape[axis]
    return math.prod(shape)


@rule("gather", "dynamic_gather", "torch_index_select", kind=Kind.OTHER)
def _gather(op: Op, graph: Graph, chip: Chip) -> Cost:
    rows = index_rows(op, graph, op.operands[1])
    return Cost(
        valu_ops=graph.types[op.results[0]].elements,
        scalar_cycles=rows * constants().index_cycles / chip.cores_per_device,
    )


@rule("scatter", kind=Kind.UPDATE)
def _scatter(op: Op, graph: Graph, chip: Chip) -> Cost:
    """Read, combine and write each row; rows are taken one after the other because they may
    collide.
    """
    operands = (len(op.operands) - 1) // 2
    rows = index_rows(op, graph, op.operands[operands])
    updates = sum(graph.types[v].elements for v in op.operands[operands + 1 :])
    return Cost(
        valu_ops=2.0 * updates,
        scalar_cycles=2.0 * rows * constants().index_cycles / chip.cores_per_device,
    )
