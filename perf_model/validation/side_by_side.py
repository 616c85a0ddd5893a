"""Published GEMMs by four methods: peak roofline, SCALE-Sim's formula, the TPU compiler, the model.

`markdown` is the table of perf_model/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.program import dtype_bits
from torchtpu.perf_model.validation.compiler import estimates
from torchtpu.perf_model.validation.kernels import predict, published_s
from torchtpu.perf_model.validation.rows import Row, rows

Method = Callable[[Row], float | None]
GROUPS = {
    "bfloat16 GEMMs on TPU7x and v6e": ("gemm",),
    "float16 GEMMs on v4, from 1024": ("gemm_f16",),
    "float16 GEMMs on v4, 128 to 1024": ("gemm_f16_small",),
}


def _sizes(row: Row) -> tuple[int, int, int]:
    return row.config["m"], row.config["k"], row.config["n"]


def peak_roofline_s(row: Row) -> float:
    """max(FLOPs / bfloat16 peak, bytes / peak HBM bandwidth) (Williams et al. 2009)."""
    chip, (m, k, n) = chips.load(row.chip), _sizes(row)
    moved = (m * k + k * n + m * n) * dtype_bits(row.config["dtype"]) / 8
    return max(2.0 * m * k * n / chip.peak_flops_per_s(), moved / chip.hbm_bytes_per_s)


def weight_stationary_cycles(m: int, k: int, n: int, rows_: int, columns: int) -> int:
    """Cycles of one systolic array: (2 R + C + T - 2) x ceil(K / R) x ceil(N / C), with T = M.

    SCALE-Sim (Samajdar et al., arXiv:1811.02883, weight stationary; own implementation).
    """
    folds = math.ceil(k / rows_) * math.ceil(n / columns)
    return (2 * rows_ + columns + m - 2) * folds


def scale_sim_s(row: Row) -> float:
    """The weight-stationary formula, its folds dealt to the matrix units; memory never waits."""
    chip, sizes = chips.load(row.chip), _sizes(row)
    cycles = weight_stationary_cycles(*sizes, chip.mxu_side, chip.mxu_side)
    return cycles / chip.mxu_count / (chip.clock_hz * _rows_per_cycle(chip))


def _rows_per_cycle(chip: Chip) -> float:
    """Rows that an array takes per cycle, so that a full one reaches the peak: 2 on v6e, TPU7x."""
    return chip.flops_per_cycle / (2 * chip.mxu_side**2 * chip.mxu_count)


def compiler_s(row: Row) -> float | None:
    """What the TPU compiler estimates for the same sizes; None where compiler.toml has none."""
    if row.config["dtype"] != "bf16":
        return None
    chip = chips.load(row.chip)
    sizes = dict(zip("mkn", _sizes(row), strict=True))
    found = (e for e in estimates("gemm") if e.chip == row.chip and e.sizes == sizes)
    return next((e.cycles / chip.clock_hz for e in found), None)


def model_s(row: Row) -> float:
    """What the model says."""
    predicted = predict(row)
    return published_s(row) * (predicted / row.value if row.unit == "us" else row.value / predicted)


METHODS: dict[str, Method] = {
    "peak roofline": peak_roofline_s,
    "SCALE-Sim, weight stationary": scale_sim_s,
    "libtpu's estimate": compiler_s,
    "this model": model_s,
}


def mean_abs_error_percent(chosen: Sequence[Row], method: Method) -> float | None:
    """Mean of |predicted / published - 1| of seconds, in %; None where the method has no row."""
    pairs = [(method(row), published_s(row)) for row in chosen]
    errors = [abs(found / known - 1) for found, known in pairs if found is not None]
    return 100 * sum(errors) / len(errors) if errors else None


def markdown() -> str:
    """The table: a line per group and half, a column per method; mean error of the time."""
    lines = [f"| rows | {' | '.join(METHODS)} |", "|---|" + "---:|" * len(METHODS)]
    for name, metrics in GROUPS.items():
        every = [row for row in rows() if row.metric in metrics]
        for half in ("held_out", ""):
            chosen = [row for row in every if half in ("", row.half)]
            label = f"{name}: {len(chosen)} " + ("held out" if half else "in all")
            cells = [_cell(mean_abs_error_percent(chosen, m)) for m in METHODS.values()]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"
