"""The fitted constants of a chip: calibration/NAME.toml over calibration/default.toml, strictly
read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from torchtpu.perf_model.chip import Chip, sources
from torchtpu.perf_model.facts import Fact, FactError, parse_fact, read_toml

FOLDER = Path(__file__).parent / "calibration"
DEFAULT = "default"
_PREFIX, _GIVEN = "calibration.", "given"


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What was fitted for one generation.

    mxu_efficiency: share of the bfloat16 peak that a large GEMM reaches.
    fill_bytes: operand bytes that a matmul cannot hide behind its arithmetic.
    weight_load_rows: rows, in MXU sides, below which loading the weights takes longer than they.
    vector_dot_cycles: cycles of a core per 1024 weights of a one-row product on the vector units.
    kernel_s: fixed seconds of a kernel. hbm_efficiency: share of the peak bandwidth reached.
    f16_convert_ops: vector operations that take a float16 element to float32 or back.
    """

    mxu_efficiency: float
    fill_bytes: float
    weight_load_rows: float
    vector_dot_cycles: float
    kernel_s: float
    hbm_efficiency: float
    f16_convert_ops: float


NAMES = tuple(f.name for f in fields(Calibration))


def names() -> tuple[str, ...]:
    """Chips with a file of their own."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.toml") if p.stem != DEFAULT))


@functools.cache
def facts(name: str) -> Mapping[str, Fact]:
    """Every constant of a chip with unit, source and the rows it was fitted on."""
    found = dict(_read(FOLDER / f"{DEFAULT}.toml"))
    own = FOLDER / f"{name}.toml"
    if own.exists():
        found |= _read(own)
    missing = sorted(set(NAMES) - set(found))
    if missing:
        raise FactError(f"[calibration] {DEFAULT}.toml: missing {', '.join(missing)}")
    return found


def _read(path: Path) -> Mapping[str, Fact]:
    found: dict[str, Fact] = {}
    data = read_toml(path)
    if not isinstance(data.get("date"), str):
        raise FactError(f"[calibration] {path.name}: date: expected text, got {data.get('date')!r}")
    for key, entry in data.items():
        if key == "date":
            continue
        if key not in NAMES:
            raise FactError(
                f"[calibration] {path.name}: {key}: unknown, expected one of {', '.join(NAMES)}"
            )
        found[key] = parse_fact(f"[calibration] {path.name}: {key}", entry, sources())
    return found


@functools.cache
def load(name: str) -> Calibration:
    """The constants of the chip called `name`; those of default.toml where it has no own."""
    return Calibration(**{key: fact.value for key, fact in facts(name).items()})


def calibration_of(chip: Chip) -> Calibration:
    """The constants that hold for a chip, with those that `with_constants` gave it."""
    known = load(chip.name)
    if _PREFIX + _GIVEN not in chip.facts:
        return known
    given = {n: chip.facts[_PREFIX + n].value for n in NAMES if _PREFIX + n in chip.facts}
    return replace(known, **given)


def with_constants(chip: Chip, values: Mapping[str, float]) -> Chip:
    """The chip with some fitted constants replaced: what a fit tries out."""
    unknown = sorted(set(values) - set(NAMES))
    if unknown:
        raise FactError(f"[calibration] unknown constant, expected {NAMES}, got {unknown}")
    given = {
        _PREFIX + key: Fact(value=value, unit="", per="", source="")
        for key, value in {_GIVEN: 1.0, **values}.items()
    }
    return replace(chip, facts={**chip.facts, **given})
