"""A number with its unit, what it is per, its source and the values of sources that disagree;
strictly loaded from TOML.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_KEYS = frozenset({"value", "unit", "per", "source", "alternatives", "note", "date"})
_REQUIRED = ("value", "unit", "per", "source")


class FactError(ValueError):
    """A data file that is not as it must be; the message names the file and the key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """A value that another source gives for the same fact."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One number: value in SI base units or bytes, its unit, per what it holds, and its source."""

    value: float
    unit: str
    per: str
    source: str
    alternatives: tuple[Alternative, ...] = ()
    note: str = ""


def _number(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise FactError(f"{where}: expected a number >= 0, got {value!r}")
    return value


def _source(where: str, value: object, sources: Collection[str]) -> str:
    if not isinstance(value, str) or value not in sources:
        raise FactError(f"{where}: unknown source, expected one of sources.toml, got {value!r}")
    return value


def _alternatives(where: str, entries: object, sources: Collection[str]) -> tuple[Alternative, ...]:
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and set(e) == {"value", "source"} for e in entries
    ):
        raise FactError(f"{where}: expected a list of {{value, source}}, got {entries!r}")
    return tuple(
        Alternative(
            value=_number(f"{where}.value", e["value"]),
            source=_source(f"{where}.source", e["source"], sources),
        )
        for e in entries
    )


def parse_fact(where: str, entry: object, sources: Collection[str]) -> Fact:
    """The fact of one TOML table. `where` names file and key in the error; sources are the names
    that may be cited.
    """
    if not isinstance(entry, dict):
        raise FactError(f"{where}: expected a table {{value, unit, per, source}}, got {entry!r}")
    missing = [k for k in _REQUIRED if k not in entry]
    unknown = sorted(set(entry) - _KEYS)
    if missing or unknown:
        raise FactError(f"{where}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
    texts = {k: entry.get(k, "") for k in ("unit", "per", "note")}
    if not all(isinstance(t, str) for t in texts.values()):
        raise FactError(f"{where}: unit, per and note are text, got {texts}")
    return Fact(
        value=_number(f"{where}.value", entry["value"]),
        source=_source(f"{where}.source", entry["source"], sources),
        alternatives=_alternatives(f"{where}.alternatives", entry.get("alternatives", []), sources),
        **texts,
    )


def read_toml(path: Path) -> Mapping[str, object]:
    """A parsed TOML file; FactError names the file when it cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FactError(f"{path.name}: {error}") from error


def read_tables(path: Path, known: Mapping[str, str]) -> Iterator[tuple[str, str, Fact]]:
    """(table, key, fact) of a file of tables and a date. Raises FactError for anything else."""
    for section, table in read_toml(path).items():
        if section == "date":
            continue
        if not isinstance(table, dict):
            raise FactError(f"{path.name}: {section}: expected a table, got {table!r}")
        for key, entry in table.items():
            yield section, key, parse_fact(f"{path.name}: {section}.{key}", entry, known)
