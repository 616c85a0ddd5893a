"""What `explain_recompiles()` returns: the recompiles so far as rows and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_WIDTH = 36  # of a value in the table


@dataclass(frozen=True, kw_only=True)
class Recompile:
    """A compile of ops that were compiled before, and how its key differs from the nearest one."""

    program: str
    entry: str  # the first entry of the key that differs
    expected: Any  # its value in the nearest earlier program
    got: Any
    differing: int  # entries that differ in all
    line: str  # the user's, "train.py:31"; empty in backward
    earlier_line: str  # where the nearest earlier program was compiled
    hint: str

    def __str__(self) -> str:
        others = f" (and {self.differing - 1} more)" if self.differing > 1 else ""
        return (
            f"{self.program}{at(self.line)} compiled again: {self.entry}: expected "
            f"{self.expected}{at(self.earlier_line)}, got {self.got}{others}; {self.hint}"
        )


def at(line: str) -> str:
    return f" at {line}" if line else ""


@dataclass(frozen=True)
class Recompiles:
    """The recompiles so far; `str()` is a table, most frequent first."""

    rows: tuple[Recompile, ...]  # the latest 1000, oldest first
    compiles: int  # of the process, first compiles included
    programs: dict[str, int]  # program name -> recompiles

    def __str__(self) -> str:
        return table(self.rows, self.compiles, sum(self.programs.values()), 30)


def table(rows: Sequence[Recompile], compiles: int, recompiles: int, groups: int) -> str:
    """Return a table of recompiles with at most so many groups."""
    grouped: dict[tuple[str, str, str], list[Recompile]] = {}
    for row in rows:
        grouped.setdefault((row.program, row.entry, row.line), []).append(row)
    ordered = sorted(grouped.values(), key=len, reverse=True)
    title = f"{compiles} compiles, {recompiles} of them of ops compiled before"
    lines = [title + (":" if rows else "")]
    for group in ordered[:groups]:
        last = group[-1]
        lines += [
            f"{len(group):>5} x {last.program}" + (f" at {last.line}" if last.line else ""),
            f"        {last.entry}: expected {_short(last.expected)}, got {_short(last.got)}"
            + (f" (nearest: {last.earlier_line})" if last.earlier_line != last.line else ""),
            f"        {last.hint}",
        ]
    if len(ordered) > groups:
        lines.append(f"      and {len(ordered) - groups} more kinds")
    return "\n".join(lines)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
