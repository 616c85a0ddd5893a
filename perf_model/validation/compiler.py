"""Cycles that the TPU compiler itself estimates (compiler.toml), next to the model's."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.facts import FactError, read_toml
from torchtpu.perf_model.validation.rows import FOLDER

_ONE_CORE = frozenset({"v4"})  # estimated without megacore: one of the two cores of a device


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """One program: its chip, its sizes by column name, and the compiler's cycles for a device."""

    chip: str
    sizes: Mapping[str, Any]
    cycles: float


@functools.cache
def estimates(table: str) -> tuple[Estimate, ...]:
    """The estimates of a table of compiler.toml: gemm, one_row, small_k or chain."""
    data = read_toml(FOLDER / "compiler.toml")
    found = data.get(table)
    if not isinstance(found, dict):
        known = ", ".join(k for k, v in data.items() if isinstance(v, dict))
        raise FactError(f"[validation] compiler.toml: expected one of {known}, got {table!r}")
    return tuple(_estimate(dict(zip(found["columns"], r, strict=True))) for r in found["rows"])


def _estimate(row: dict[str, Any]) -> Estimate:
    chip, cycles = row.pop("chip"), row.pop("cycles")
    return Estimate(chip=chip, cycles=cycles / (2 if chip in _ONE_CORE else 1), sizes=row)


def weights_were_loaded_before(estimate: Estimate, chip: Chip) -> bool:
    """Whether the cycles are fewer than its weights take through HBM at peak bandwidth.

    The compiler then loads them into VMEM in a copy of its own, of which it says no cycles.
    """
    sizes = estimate.sizes
    weights_bytes = float(2 * sizes["k"] * max(sizes["m"], sizes["n"]))
    return estimate.cycles / chip.clock_hz < weights_bytes / chip.hbm_bytes_per_s
