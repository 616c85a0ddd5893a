"""What is fitted for each generation, in which order, and the files that come of it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.calibration import fit as fits
from torchtpu.perf_model.calibration.fit import START, Case, Fitted, fit
from torchtpu.perf_model.chip import Chip, UnknownChip
from torchtpu.perf_model.fitted import DEFAULT, with_constants

_UNITS = {
    "mxu_efficiency": ("1", "core"),
    "fill_bytes": ("byte", "kernel"),
    "weight_load_rows": ("MXU sides", "weight tile"),
    "vector_dot_cycles": ("cycles", "1024 weights and core"),
    "kernel_s": ("s", "kernel"),
    "hbm_efficiency": ("1", "device"),
    "f16_convert_ops": ("operations", "element"),
}
_PUBLISHED, _COMPILER = "fit_published", "fit_compiler"
_MANY, _LINE = 20, 150


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One fit: constants, the rows (function of the chip's name), where they come from."""

    names: tuple[str, ...]
    cases: Callable[[str], Sequence[Case]]
    source: str
    what: str


_COPIES = Stage(
    names=("kernel_s", "hbm_efficiency"),
    cases=lambda _chip: fits.published("", "hbm_copy"),
    source=_PUBLISHED,
    what="copies of all chips",
)
_LARGE = Stage(
    names=("mxu_efficiency", "fill_bytes"),
    cases=fits.compiled_gemms,
    source=_COMPILER,
    what="GEMMs of sides over 512",
)
_FILL = Stage(names=("fill_bytes",), cases=fits.compiled_gemms, source=_COMPILER, what=_LARGE.what)
_FEW = Stage(
    names=("weight_load_rows",),
    cases=fits.compiled_few_rows,
    source=_COMPILER,
    what="GEMMs of at most 256 rows, weights in VMEM",
)
_ONE = Stage(
    names=("vector_dot_cycles",),
    cases=fits.compiled_one_row,
    source=_COMPILER,
    what="products of one row",
)
_FLOAT16 = Stage(
    names=("mxu_efficiency", "kernel_s", "f16_convert_ops"),
    cases=lambda chip: fits.published(chip, "gemm_f16", "gemm_f16_small"),
    source=_PUBLISHED,
    what="float16 GEMMs of 128 to 4096",
)
_MEASURED = Stage(
    names=("mxu_efficiency", "fill_bytes", "kernel_s", "hbm_efficiency"),
    cases=lambda chip: fits.published(chip, "gemm", "hbm_copy"),
    source=_PUBLISHED,
    what="GEMMs and copies",
)
_MEAN = Stage(names=(), cases=lambda _chip: (), source=_COMPILER, what="geometric mean")
STAGES: Mapping[str, tuple[Stage, ...]] = {
    "v3": (_LARGE,),
    "v4": (_FILL, _FLOAT16, _FEW, _ONE),
    "v5e": (_LARGE, _FEW, _ONE),
    "v5p": (_LARGE, _FEW, _ONE),
    "v6e": (_LARGE, _FEW, _ONE),
    "tpu7x": (_MEASURED,),
}
_POOLED = ("mxu_efficiency", "fill_bytes", "weight_load_rows", "vector_dot_cycles")


def calibrate() -> Mapping[str, tuple[tuple[Stage, Fitted], ...]]:
    """Every fit by the name of its file; DEFAULT holds what chips without their own take."""
    start = with_constants(chips.load("tpu7x"), START)
    shared = fit(start, _COPIES.names, _COPIES.cases(""), _PUBLISHED)
    found: dict[str, tuple[tuple[Stage, Fitted], ...]] = {}
    for name, stages in STAGES.items():
        found[name] = _generation(chips.load(name), stages, dict(shared.values))
    float16 = next(made for stage, made in found["v4"] if stage is _FLOAT16)
    convert = Fitted(
        values={"f16_convert_ops": float16.values["f16_convert_ops"]},
        source=_PUBLISHED,
        cases=float16.cases,
        mean_abs_error_percent=float16.mean_abs_error_percent,
    )
    found[DEFAULT] = ((_COPIES, shared), (_FLOAT16, convert), *_pooled(found))
    return found


def _generation(
    chip: Chip, stages: Sequence[Stage], shared: dict[str, float]
) -> tuple[tuple[Stage, Fitted], ...]:
    known, found = START | shared, []
    for stage in stages:
        made = fit(with_constants(chip, known), stage.names, stage.cases(chip.name), stage.source)
        known |= made.values
        found.append((stage, made))
    return tuple(found)


def _pooled(found: Mapping[str, Sequence[tuple[Stage, Fitted]]]) -> list[tuple[Stage, Fitted]]:
    """Geometric means over the generations, for a chip without rows of its own."""
    return [(_MEAN, _mean(name, found)) for name in _POOLED]


def _mean(name: str, found: Mapping[str, Sequence[tuple[Stage, Fitted]]]) -> Fitted:
    fitted = {c: f.values[name] for c, pairs in found.items() for _, f in pairs if name in f.values}
    return Fitted(
        values={name: geometric_mean(fitted.values())},
        source=_COMPILER,
        cases=tuple(fitted),
        mean_abs_error_percent=0.0,
    )


def to_toml(fitted: Sequence[tuple[Stage, Fitted]], date: str) -> str:
    """The text of a generation's file: constants, each group after the rows it was fitted on."""
    lines = ["# Written by `torchtpu-perf calibrate`.", f'date = "{date}"']
    for stage, made in fitted:
        lines += ["", *_listed(made.cases)]
        for name, value in made.values.items():
            unit, per = _UNITS[name]
            lines.append(
                f'{name} = {{ value = {_rounded(value)}, unit = "{unit}", per = "{per}", '
                f'source = "{made.source}", note = "{_note(stage, made)}" }}'
            )
    return "\n".join(lines) + "\n"


def _listed(cases: Sequence[str]) -> list[str]:
    """Comment lines with the names of rows; of very many only their number."""
    if len(cases) > _MANY:
        return [f"# {len(cases)} rows: {cases[0]} to {cases[-1]}"]
    return textwrap.wrap(
        ", ".join(cases), _LINE, initial_indent="# ", subsequent_indent="# ",
        break_on_hyphens=False,
    )  # fmt: skip


def _rounded(value: float) -> str:
    return str(round(value, -3)).removesuffix(".0") if value >= 1e4 else f"{value:.4g}"


def _note(stage: Stage, made: Fitted) -> str:
    if not made.mean_abs_error_percent:
        return f"{stage.what} of the generations above"
    error = f"mean error {made.mean_abs_error_percent:.1f} %"
    return f"{len(made.cases)} rows, {stage.what}; {error}"


def stages_of(name: str) -> tuple[Stage, ...]:
    """What is fitted for a chip. Raises UnknownChip, listing those with rows."""
    if name not in STAGES:
        raise UnknownChip(f"[calibrate] no rows of {name!r}, expected one of {', '.join(STAGES)}")
    return STAGES[name]
