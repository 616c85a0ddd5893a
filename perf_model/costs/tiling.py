"""How often a matmul reads its operands from HBM: tiles of the result that fit a kernel's VMEM."""

from __future__ import annotations

import functools
import itertools
import math
import os
import re

from torchtpu.perf_model.chip import Chip

_FLAG = re.compile(r"--xla_tpu_scoped_vmem_limit_kib=(\d+)")
_DEPTH = 512  # of the contracted dimension in VMEM at a time
_BUFFERS = 2  # one is computed on while the other moves
_SIDES = tuple(2**e for e in range(7, 14))


def tile_budget_bytes(chip: Chip) -> int:
    """VMEM that the windows of one kernel may take on a device.

    The compiler's default, or what LIBTPU_INIT_ARGS sets with --xla_tpu_scoped_vmem_limit_kib.
    """
    said = _FLAG.search(os.environ.get("LIBTPU_INIT_ARGS", ""))
    default = chip.value("memory.scoped_vmem_bytes")
    return int(said[1]) * 1024 if said else int(default)


def matmul_bytes(m: int, k: int, n: int, itemsize: float, result: float, chip: Chip) -> float:
    """HBM bytes of [m, k] x [k, n]: each operand once per row or column of tiles of the result.

    An operand of at most half of VMEM is loaded there once, before. itemsize, result: bytes of an
    element of the operands and of the result.
    """
    rows, columns = _tile(tile_budget_bytes(chip), itemsize, result, m, n)
    lhs, rhs = m * k * itemsize, k * n * itemsize
    resident = chip.vmem_bytes / 2
    lhs_reads = 1 if lhs <= resident else math.ceil(n / columns)
    rhs_reads = 1 if rhs <= resident else math.ceil(m / rows)
    return lhs * lhs_reads + rhs * rhs_reads + m * n * result


@functools.cache
def _tile(budget: int, itemsize: float, result: float, m: int, n: int) -> tuple[int, int]:
    """The tile [rows, columns] of the result that reads the operands least often."""

    def fits(rows: int, columns: int) -> bool:
        sums = 4 + _BUFFERS * result
        windows = _BUFFERS * itemsize * _DEPTH * (rows + columns)
        return sums * rows * columns + windows <= budget

    def reads(tile: tuple[int, int]) -> tuple[float, int]:
        rows, columns = tile
        return math.ceil(n / columns) * m + math.ceil(m / rows) * n, rows * columns

    return min((t for t in itertools.product(_SIDES, _SIDES) if fits(*t)), key=reads)
