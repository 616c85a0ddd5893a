"""What the model says of the rows that measure one kernel or one collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.facts import FactError
from torchtpu.perf_model.kernel_cost import program_cost
from torchtpu.perf_model.network import topology as topologies
from torchtpu.perf_model.network.collectives import collective_cost
from torchtpu.perf_model.program import Graph
from torchtpu.perf_model.validation import programs
from torchtpu.perf_model.validation.rows import Row

_SCOPED = "memory.scoped_vmem_bytes"
_SLOPE_SIDES = (2048, 4096)  # the slope of time over elements is taken between these squares
_PER_UNIT = {"us": 1e6, "TFLOP/s/device": 1e-12, "GB/s/device": 1e-9, "GB/s": 1e-9}


def program_of(row: Row) -> Graph:
    """The program that a row of kind gemm, copy or kernel_floor measures."""
    config = row.config
    if row.kind == "gemm":
        return programs.matmul(config["m"], config["k"], config["n"], config["dtype"])
    if row.kind == "copy":
        return programs.copy(config["bytes"])
    return programs.elementwise(config["op"], (config["elements"],), config["dtype"])


def _work(row: Row) -> float:
    """FLOPs or bytes that the source divides by the time."""
    config = row.config
    if row.kind == "gemm":
        return float(2 * config["m"] * config["k"] * config["n"])
    return float(2 * config["bytes"] if row.kind == "copy" else config["counted_bytes"])


def in_unit(row: Row, seconds: float) -> float:
    """Seconds as the row's quantity: a time, or a rate of its work."""
    if row.unit == "us":
        return seconds * _PER_UNIT["us"]
    if row.unit in _PER_UNIT:
        return _work(row) / seconds * _PER_UNIT[row.unit]
    raise FactError(f"[validation] {row.id}: expected a unit of {list(_PER_UNIT)}, got {row.unit}")


def published_s(row: Row) -> float:
    """The row's value in seconds."""
    return row.value / 1e6 if row.unit == "us" else in_unit(row, row.value)


def _kernel(row: Row, chip: Chip) -> float:
    return in_unit(row, program_cost(program_of(row), chip).time_s)


def _slope(row: Row, chip: Chip) -> float:
    """Microseconds per element of a two-dimensional elementwise op."""
    op, dtype = row.config["op"], row.config["dtype"]
    small, large = (
        program_cost(programs.elementwise(op, (side, side), dtype), chip).time_s
        for side in _SLOPE_SIDES
    )
    return (large - small) / (_SLOPE_SIDES[1] ** 2 - _SLOPE_SIDES[0] ** 2) * 1e6


def _collective(row: Row, chip: Chip) -> float:
    config = row.config
    topology = topologies.load(chip, config["topology"], config["slices"])
    group = config["group"]
    members = range(topology.devices) if group == "all" else group
    cost = collective_cost(config["collective"], config["size_bytes"], tuple(members), topology)
    return in_unit(row, cost.time_s)


PREDICTORS: dict[str, Callable[[Row, Chip], float]] = {
    "gemm": _kernel,
    "copy": _kernel,
    "kernel_floor": _kernel,
    "elementwise": _slope,
    "collective": _collective,
}


def predict(row: Row, chip: Chip | None = None) -> float:
    """What the model says, in the row's unit, of a row of one of the kinds in PREDICTORS.

    A chip may be given to try out other fitted constants.
    """
    return PREDICTORS[row.kind](row, _as_measured(row, chip or chips.load(row.chip)))


def _as_measured(row: Row, chip: Chip) -> Chip:
    """The chip with the compiler's limit of VMEM that the source has set, where it has."""
    if "scoped_vmem_kib" not in row.config:
        return chip
    known = chip.facts[_SCOPED]
    set_ = replace(known, value=row.config["scoped_vmem_kib"] * 1024)
    return replace(chip, facts={**chip.facts, _SCOPED: set_})
