"""Grouped products (ragged_dot): rows of many groups in tiles, as the public TPU kernels lay them.

The kernels (JAX's and MaxText's megablox, tokamax's ragged_dot) go over tiles of rows. A tile in
which a group ends is visited once for every group that it holds, and computed as a whole each time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.constants import constants
from torchtpu.perf_model.costs.matmul import gemm_cycles, operand_dtype, time_factor
from torchtpu.perf_model.costs.registry import Cost, Kind, rule
from torchtpu.perf_model.fitted import calibration_of
from torchtpu.perf_model.program import Graph, Op, dtype_bits

_LANES = 128
_ROWS = (128, 256, 512, 1024)  # tiles of rows that the tuned kernel is tried with
_PARTS = 8  # into how many tiles it cuts a side at most
_BUFFERS = 2  # one is computed on while the other moves

Tile = tuple[int, int, int]  # rows, columns of the first operand, columns of the second
_TUNED: dict[tuple[Grouped, str, float, int, float], Tile] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouped:
    """A grouped product of `rows` rows in `groups` groups, itemsize and result in bytes.

    [rows, k] x [groups, k, n] -> [rows, n], or, where it `sums` over the rows,
    [k, rows] x [rows, n] -> [groups, k, n].
    """

    rows: int
    k: int
    n: int
    groups: int
    sums: bool
    dtype: str
    itemsize: float
    result: float

    def visits(self, tile_rows: int) -> int:
        """Visited tiles of rows where no group begins with a tile: the borders add one each."""
        return math.ceil(self.rows / tile_rows) + min(self.groups, self.rows) - 1

    def counts(self, tile: Tile) -> tuple[int, int]:
        """Tiles along k and along n."""
        return math.ceil(self.k / tile[1]), math.ceil(self.n / tile[2])

    def cycles(self, tile: Tile, chip: Chip) -> float:
        """Cycles of the matrix units; whole tiles are computed, the cores sharing those along n."""
        (rows, k, n), (across_k, across_n) = tile, self.counts(tile)
        k, n = k * across_k, n * -(-across_n // chip.cores_per_device) * chip.cores_per_device
        sizes = (k, rows, n) if self.sums else (rows, k, n)
        return self.visits(rows) * gemm_cycles(*sizes, self.dtype, chip)

    def hbm_bytes(self, tile: Tile) -> float:
        """Every tile that a step of the grid needs and the step before did not."""
        rows, (across_k, across_n) = self.visits(tile[0]) * tile[0], self.counts(tile)
        weights = self.groups * self.k * self.n
        if self.sums:
            read = self.rows * (self.k * across_n + self.n * across_k)
            return read * self.itemsize + weights * self.result
        if across_k == 1:
            read = self.rows * self.k * across_n + weights
        else:
            read = rows * self.k * across_n + self.visits(tile[0]) * self.k * self.n
        return read * self.itemsize + self.rows * self.n * self.result

    def vmem_bytes(self, tile: Tile) -> float:
        """Windows of both operands and of the result, and float32 sums."""
        rows, k, n = tile
        moved = rows * (k + n) if self.sums else rows * k + k * n
        made = k * n if self.sums else rows * n
        return _BUFFERS * (moved * self.itemsize + made * self.result) + 4 * made

    def steps(self, tile: Tile) -> int:
        """Steps of the kernel's grid."""
        return self.visits(tile[0]) * math.prod(self.counts(tile))


@rule("chlo.ragged_dot", kind=Kind.MATMUL)
def _ragged_dot(op: Op, graph: Graph, chip: Chip) -> Cost:
    of = _grouped(op, graph)
    if not of.rows * of.k * of.n * of.groups:
        return Cost()
    tile = _tile(of, chip)
    step = constants().grid_step_cycles / chip.cores_per_device
    return Cost(
        matmul_flops=2.0 * of.rows * of.k * of.n,
        mxu_cycles=of.cycles(tile, chip) * time_factor(op, graph, chip),
        hbm_bytes=of.hbm_bytes(tile),
        serial_cycles=of.steps(tile) * step,
    )


def _grouped(op: Op, graph: Graph) -> Grouped:
    lhs, rhs = (graph.types[v] for v in op.operands[:2])
    out, dtype = graph.types[op.results[0]], operand_dtype(op, graph)
    sums = len(out.shape) > len(lhs.shape) or len(rhs.shape) == len(lhs.shape)
    k = out.shape[-2] if sums else lhs.shape[-1]
    return Grouped(
        rows=lhs.elements // max(1, k),
        k=k,
        n=out.shape[-1],
        groups=graph.types[op.operands[2]].elements,
        sums=sums,
        dtype=dtype,
        itemsize=dtype_bits(dtype) / 8,
        result=dtype_bits(out.dtype) / 8,
    )


def _tile(of: Grouped, chip: Chip) -> Tile:
    """The fastest tile that fits where the kernel is tuned for the chip; else MaxText's default."""
    rows = -(-of.rows // 8) * 8
    if not chip.has("mxu.grouped_tuned"):
        side, known = int(constants().grouped_tile_side), int(constants().grouped_tile_rows)
        return min(known, rows), min(side, _whole(of.k)), min(side, _whole(of.n))
    key = of, chip.name, chip.flops_per_cycle, chip.vmem_bytes, chip.hbm_bytes_per_s
    if key not in _TUNED:
        tiles = [t for t in _tiles(of, rows) if of.vmem_bytes(t) <= chip.vmem_bytes / 2]
        smallest = (min(_ROWS[0], rows), _LANES, _LANES)
        _TUNED[key] = min(tiles or [smallest], key=lambda tile: (_seconds(of, tile, chip), tile))
    return _TUNED[key]


def _tiles(of: Grouped, rows: int) -> Iterator[Tile]:
    return itertools.product(sorted({min(r, rows) for r in _ROWS}), _sides(of.k), _sides(of.n))


def _sides(size: int) -> list[int]:
    return sorted({_whole(-(-size // parts)) for parts in range(1, _PARTS + 1)})


def _whole(size: int) -> int:
    return -(-size // _LANES) * _LANES


def _seconds(of: Grouped, tile: Tile, chip: Chip) -> float:
    fitted = calibration_of(chip)
    steps = of.steps(tile) * constants().grid_step_cycles / chip.cores_per_device
    products = of.cycles(tile, chip) / fitted.mxu_efficiency
    copies = of.hbm_bytes(tile) / (fitted.hbm_efficiency * chip.hbm_bytes_per_s)
    return max(products / chip.clock_hz, copies) + steps / chip.clock_hz
