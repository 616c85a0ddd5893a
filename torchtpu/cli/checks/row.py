"""A finding: how bad it is, what was looked at, what was found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How bad a finding is; only FAIL makes the exit code 1."""

    OK = "ok"
    NOTE = "note"  # neither good nor bad
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A finding; one that warns or fails says what to do."""

    status: Status
    what: str
    finding: str
    advice: str = ""
    details: str = ""  # for reports of defects: the last lines that a process wrote

    def __post_init__(self) -> None:
        if self.status in (Status.WARN, Status.FAIL) and not self.advice:
            raise ValueError(f"[{self.what}] {self.finding!r}: expected a word on what to do")


def ok(what: str, finding: str) -> Row:
    """Return a finding that all is well."""
    return Row(status=Status.OK, what=what, finding=finding)


def note(what: str, finding: str) -> Row:
    """Return a finding that is neither good nor bad."""
    return Row(status=Status.NOTE, what=what, finding=finding)


def warn(what: str, finding: str, advice: str) -> Row:
    """Return a finding that the device works in spite of."""
    return Row(status=Status.WARN, what=what, finding=finding, advice=advice)


def fail(what: str, finding: str, advice: str, details: str = "") -> Row:
    """Return a finding because of which something does not work."""
    return Row(status=Status.FAIL, what=what, finding=finding, advice=advice, details=details)
