"""Gathers and scatters: one address per row, then the row's elements."""

from __future__ import annotations

import math

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.constants import constants
from torchtpu.perf_model.costs.registry import Cost, Kind, rule
from torchtpu.perf_model.program import Graph, Op, dtype_bits


def index_rows(op: Op, graph: Graph, indices: int) -> int:
    """Number of index vectors of a gather or scatter."""
    shape = list(graph.types[indices].shape)
    axis = op.int("index_vector_dim", len(shape))
    if axis < len(shape):
        del shape[axis]
    return math.prod(shape)


@rule("gather", "dynamic_gather", "torch_index_select", kind=Kind.OTHER)
def _gather(op: Op, graph: Graph, chip: Chip) -> Cost:
    """One DMA per row; then, unless SparseCores gather, the row is laid into its tile.

    A row of 16 bits shares its words with its neighbour, which is read too. The TensorCore waits
    for the rows of a step before it lays them: nothing overlaps (schedules of libtpu 0.0.42.1).
    """
    rows, out = index_rows(op, graph, op.operands[1]), graph.types[op.results[0]]
    if not rows:
        return Cost()
    shared = max(1, 32 // max(8, dtype_bits(out.dtype)))
    on_core = not chip.has("structure.sparsecore_gather")
    laid = _laid_cycles(rows, out.elements, chip) if on_core else 0.0
    return Cost(
        valu_ops=out.elements,
        scalar_cycles=rows * constants().index_cycles / chip.cores_per_device,
        serial_cycles=laid / chip.cores_per_device,
        hbm_bytes=out.elements * dtype_bits(out.dtype) / 8 * (shared + 1),
    )


def _laid_cycles(rows: int, elements: int, chip: Chip) -> float:
    """Cycles of one core that put rows into tiles, 128 lanes at a time."""
    return rows * math.ceil(elements / rows / chip.value("vpu.lanes")) * _piece_cycles(chip)


def _piece_cycles(chip: Chip) -> float:
    """Cycles that lay 128 lanes of a row into a tile: one store, and what picks and merges them."""
    stores = 1 / chip.value("vpu.vstore_slots")
    return max(stores, constants().gather_valu_ops / chip.value("vpu.valu_slots"))


@rule("scatter", kind=Kind.UPDATE)
def _scatter(op: Op, graph: Graph, chip: Chip) -> Cost:
    """Read, combine and write each row; rows are taken one after the other because they may
    collide. libtpu 0.0.42.1 schedules 25 cycles for a row of 2880 on TPU7x.
    """
    operands = (len(op.operands) - 1) // 2
    rows = index_rows(op, graph, op.operands[operands])
    updates = sum(graph.types[v].elements for v in op.operands[operands + 1 :])
    one = constants().index_cycles
    cycles = max(2.0 * one * rows, one * rows + _laid_cycles(rows, updates, chip)) if rows else 0.0
    return Cost(valu_ops=2.0 * updates, scalar_cycles=cycles / chip.cores_per_device)
