"""`torchtpu-doctor`: what is installed here, what works, and what to do about what does not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module

from torchtpu.cli.checks.row import Row, Status, fail
from torchtpu.cli.checks.together import together

EXIT_OK, EXIT_FAILED = 0, 1
_SECTIONS = {
    "versions": "versions",
    "device key": "device_key",
    "targets": "targets",
    "cache": "cache",
    "environment": "environment",
}
_LONGER_S = 5.0  # that a section may take than a process that it asks
_WAIT = "a disk or network directory may not answer; run it again when it does"
_REPORT = "pip install torchtpu with its dependencies; if that does not help, report it"
Found = Mapping[str, Sequence[Row]]


def examine(limit_s: float) -> dict[str, Sequence[Row]]:
    """Return the rows of every section; all run at once, and one that breaks is a row itself."""
    calls = {title: partial(_rows, module, limit_s) for title, module in _SECTIONS.items()}
    found = together(calls, limit_s + _LONGER_S)
    return {t: [_broken(t, r)] if isinstance(r, Exception) else r for t, r in found.items()}


def _rows(module: str, limit_s: float) -> list[Row]:
    rows: list[Row] = import_module(f"torchtpu.cli.checks.{module}").rows(limit_s)
    return rows


def _broken(title: str, error: Exception) -> Row:
    advice = _WAIT if isinstance(error, TimeoutError) else _REPORT
    return fail(title, f"{type(error).__name__}: {error}", advice)


def failures(found: Found) -> int:
    """Count the rows that fail."""
    return _count(found, Status.FAIL)


def _count(found: Found, status: Status) -> int:
    return sum(row.status is status for rows in found.values() for row in rows)


def text(found: Found) -> Iterator[str]:
    """Yield the lines for people."""
    for title, rows in found.items():
        yield title
        for row in rows:
            yield f"  {row.status:4}  {row.what}: {row.finding}"
            if row.advice:
                yield f"        -> {row.advice}"
        yield ""
    yield _summary(found)


def _summary(found: Found) -> str:
    failed, warned = failures(found), _count(found, Status.WARN)
    if failed:
        return f"fail: {failed}, warn: {warned}. Begin with the first fail above."
    return 'All works: use device="tpu".' + (f" warn: {warned}, see above." if warned else "")


def _as_json(found: Found) -> str:
    sections = {title: [asdict(row) for row in rows] for title, rows in found.items()}
    about = {"fail": failures(found), "warn": _count(found, Status.WARN), "sections": sections}
    return json.dumps(about, indent=2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchtpu-doctor", description=__doc__, epilog="Exit code 1 where something fails."
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument(
        "--json", action="store_const", dest="format", const="json", help="same as --format json"
    )
    add_timeout(parser)
    return parser


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the option --timeout."""
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds until a target that does not answer is given up (default: 60)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 where something fails."""
    arguments = _parser().parse_args(argv)
    found = examine(arguments.timeout)
    try:
        lines = [_as_json(found)] if arguments.format == "json" else text(found)
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        sys.stderr.close()
    return EXIT_FAILED if failures(found) else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
