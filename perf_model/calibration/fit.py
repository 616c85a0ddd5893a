"""Fits the constants of a generation with scipy: which constants, on which rows, between which
bounds.

Every constant is a physical quantity with bounds, every fit a robust least squares of the logarithm
of predicted over published, and only rows of the fit half are used. A constant is fitted to
published measurements where a generation has at least two, and else to the compiler's estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.costs.matmul import gemm_cycles
from torchtpu.perf_model.fitted import calibration_of, with_constants
from torchtpu.perf_model.kernel_cost import program_cost
from torchtpu.perf_model.validation import programs
from torchtpu.perf_model.validation.compiler import (
    Estimate,
    estimates,
    weights_were_loaded_before,
)
from torchtpu.perf_model.validation.kernels import predict
from torchtpu.perf_model.validation.rows import Row, rows

# Least value, start and greatest value: of what is physical, not of what was found.
RANGES: Mapping[str, tuple[float, float, float]] = {
    "mxu_efficiency": (0.5, 0.9, 1.0),
    "fill_bytes": (2.0**16, 2.0**23, 2.0**26),
    "weight_load_rows": (0.1, 0.5, 1.5),
    "vector_dot_cycles": (1.0, 10.0, 40.0),
    "kernel_s": (1e-7, 1e-6, 1e-5),
    "hbm_efficiency": (0.5, 0.85, 1.0),
    "f16_convert_ops": (1.0, 20.0, 100.0),
}
START = {name: start for name, (_, start, _) in RANGES.items()}
_ROBUST = 0.05  # relative error from which a row counts linearly, not squared
_LARGE_SIDE = 512  # the compiler's GEMMs from here on are bound by the matrix unit
_FEW_ROWS = 256
_MIN_CASES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A row to fit to: `ratio(chip)` is predicted over published."""

    name: str
    ratio: Callable[[Chip], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """What a fit found: value by constant, its source, the rows, and their mean error in %."""

    values: Mapping[str, float]
    source: str
    cases: tuple[str, ...]
    mean_abs_error_percent: float


def fit(chip: Chip, names: Sequence[str], cases: Sequence[Case], source: str) -> Fitted:
    """The constants `names` of a chip that fit the cases best. Raises ValueError for one case."""
    from scipy.optimize import least_squares

    if len(cases) < max(_MIN_CASES, len(names)):
        raise ValueError(f"[calibrate] {chip.name}: {len(cases)} rows for {', '.join(names)}")

    def ratios(logs: Sequence[float]) -> list[float]:
        made = with_constants(chip, dict(zip(names, map(math.exp, logs), strict=True)))
        return [case.ratio(made) for case in cases]

    lower, start, upper = ([math.log(RANGES[name][i]) for name in names] for i in range(3))
    found = least_squares(
        lambda logs: [math.log(r) for r in ratios(logs)],
        start,
        bounds=(lower, upper),
        loss="soft_l1",
        f_scale=_ROBUST,
        diff_step=1e-3,
    )
    errors = [abs(r - 1) for r in ratios(found.x)]
    return Fitted(
        values=dict(zip(names, map(math.exp, found.x), strict=True)),
        source=source,
        cases=tuple(case.name for case in cases),
        mean_abs_error_percent=100 * sum(errors) / len(errors),
    )


def published(chip: str, *metrics: str) -> list[Case]:
    """The rows of the fit half of some metrics; of every chip where `chip` is ""."""
    chosen = (r for r in rows() if r.half == "fit" and r.metric in metrics)
    return [_published(row) for row in chosen if chip in ("", row.chip)]


def _published(row: Row) -> Case:
    def ratio(chip: Chip) -> float:
        where = chip if chip.name == row.chip else _with_constants_of(chip, row.chip)
        predicted = predict(row, where) / row.value
        return predicted if row.unit.startswith("us") else 1 / predicted

    return Case(name=row.id, ratio=ratio)


def _with_constants_of(chip: Chip, other: str) -> Chip:
    known = calibration_of(chip)
    return with_constants(chips.load(other), {n: getattr(known, n) for n in _SHARED})


_SHARED = ("kernel_s", "hbm_efficiency")


def compiled_gemms(chip: str) -> list[Case]:
    """The compiler's large GEMMs: those whose sides are all at least _LARGE_SIDE."""
    chosen = (e for e in estimates("gemm") if e.chip == chip and min(e.sizes.values()) > 0)
    return [_compiled(e) for e in chosen if min(e.sizes.values()) > _LARGE_SIDE]


def _compiled(estimate: Estimate) -> Case:
    sizes = estimate.sizes
    program = programs.matmul(sizes["m"], sizes["k"], sizes["n"], sizes.get("dtype", "bf16"))

    def ratio(chip: Chip) -> float:
        return program_cost(program, chip).time_s * chip.clock_hz / estimate.cycles

    return Case(name="x".join(str(v) for v in sizes.values()), ratio=ratio)


def compiled_few_rows(chip: str) -> list[Case]:
    """Products of few rows whose weights are in VMEM already: time is loading them into the MXU."""
    place = chips.load(chip)
    few = (
        e
        for e in estimates("gemm")
        if e.chip == chip and min(e.sizes["m"], e.sizes["n"]) <= _FEW_ROWS <= e.sizes["k"]
    )
    return [_few_rows(e) for e in few if weights_were_loaded_before(e, place)]


def _few_rows(estimate: Estimate) -> Case:
    m, k, n = (estimate.sizes[name] for name in "mkn")

    def ratio(chip: Chip) -> float:
        cycles = gemm_cycles(m, k, n, "bf16", chip) / calibration_of(chip).mxu_efficiency
        return cycles / estimate.cycles

    return Case(name=f"{m}x{k}x{n}", ratio=ratio)


def compiled_one_row(chip: str) -> list[Case]:
    """The compiler's products of one row on the vector units."""
    return [_one_row(e) for e in estimates("one_row") if e.chip == chip]


def _one_row(estimate: Estimate) -> Case:
    sizes = estimate.sizes
    return _compiled(Estimate(chip=estimate.chip, cycles=estimate.cycles, sizes={"m": 1, **sizes}))
