"""The published rows: every TOML file of this folder but the compiler's, strictly read."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtpu.perf_model.facts import FactError, read_toml

FOLDER = Path(__file__).parent
HALVES = ("fit", "held_out")
KINDS = ("gemm", "copy", "kernel_floor", "elementwise", "collective", "training", "serving")
_TEXT = ("name", "kind", "chip", "source", "date", "trust")
_OF_THE_COMPILER = ("compiler", "compiler_flags")
_ROW = {"id", "metric", "value", "unit"}
_GRID = ("m", "k", "n", "us")
_LARGE = 1024  # from this size of m, k and n on the mean error of float16 GEMMs is stated


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One published number.

    workload: rows of the same name belong to the same half. kind: one of KINDS. value: as
    published, in `unit`. config: what has to be known to predict it. trust: "A" a table or log of
    the measurement, "B" one that needed an assumption, which `note` states.
    """

    id: str
    workload: str
    kind: str
    metric: str
    value: float
    unit: str
    chip: str
    source: str
    date: str
    trust: str
    config: Mapping[str, Any]
    note: str = ""

    @property
    def half(self) -> str:
        """Which half the workload belongs to: the parity of the first byte of its name's SHA-256.

        Constants are fitted on "fit" only.
        """
        return HALVES[hashlib.sha256(self.workload.encode()).digest()[0] % 2]


@functools.cache
def rows() -> tuple[Row, ...]:
    """All rows, in the order of the files. Raises FactError naming file and workload."""
    found: list[Row] = []
    for path in sorted(FOLDER.glob("*.toml")):
        if path.stem not in _OF_THE_COMPILER:
            data = read_toml(path)
            found.extend(_grid(path, data) if "columns" in data else _workloads(path, data))
    ids = [row.id for row in found]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise FactError(f"[validation] {twice[0]}: a second row of that id")
    return tuple(found)


def compiler_flags(row: Row) -> str:
    """What the published run gave the TPU compiler, as LIBTPU_INIT_ARGS takes it; "" for no flags.

    Raises FactError for a name that compiler_flags.toml does not have.
    """
    known = read_toml(FOLDER / "compiler_flags.toml")
    names = row.config.get("compiler_flags", ())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise FactError(
            f"[validation] {row.id}: compiler_flags: expected names of {', '.join(known)}, "
            f"got {unknown[0]!r}"
        )
    return " ".join(str(known[name]) for name in names)


def _workloads(path: Path, data: Mapping[str, Any]) -> Iterator[Row]:
    for table in data["workload"]:
        where = f"[validation] {path.name}: {table.get('name')}"
        _check(where, table)
        for row in table["rows"]:
            if set(row) != _ROW or not row["value"] > 0:
                raise FactError(f"{where}: expected {sorted(_ROW)}, got {row}")
            yield Row(
                id=row["id"],
                workload=table["name"],
                metric=row["metric"],
                value=float(row["value"]),
                unit=row["unit"],
                config=table["config"],
                note=table.get("note", ""),
                **{key: table[key] for key in _TEXT if key != "name"},
            )


def _check(where: str, table: Mapping[str, Any]) -> None:
    unknown = set(table) - {*_TEXT, "note", "config", "rows"}
    if unknown or not all(isinstance(table.get(key), str) for key in _TEXT):
        raise FactError(f"{where}: expected text {_TEXT}, unknown {sorted(unknown) or 'nothing'}")
    if table["kind"] not in KINDS:
        raise FactError(f"{where}: kind: expected one of {', '.join(KINDS)}, got {table['kind']!r}")


def _grid(path: Path, data: Mapping[str, Any]) -> Iterator[Row]:
    """Rows of one kind, packed as lists of numbers."""
    if tuple(data["columns"]) != _GRID:
        raise FactError(f"[validation] {path.name}: columns: expected {_GRID}")
    for m, k, n, microseconds in data["rows"]:
        name = data["name"].format(m=m, k=k, n=n)
        yield Row(
            id=name,
            workload=name,
            kind="gemm",
            metric="gemm_f16" if min(m, k, n) >= _LARGE else "gemm_f16_small",
            value=float(microseconds),
            unit="us",
            config={"m": m, "k": k, "n": n, "dtype": data["dtype"]},
            **{key: data[key] for key in ("chip", "source", "date", "trust")},
        )
