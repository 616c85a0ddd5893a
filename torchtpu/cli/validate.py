"""`torchtpu-perf validate`: what the oracles predict for the published rows, and the errors."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence

from torchtpu.cli import published_scripts
from torchtpu.perf_model import cli
from torchtpu.perf_model.chip import IncompleteChip
from torchtpu.perf_model.validation import kernels
from torchtpu.perf_model.validation.rows import Row, rows
from torchtpu.perf_model.validation.table import Answer, render, to_json

MODEL, LIBTPU, BOTH = ORACLES = ("model", "libtpu", "both")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--oracle",
        choices=ORACLES,
        default=MODEL,
        help="our own model, the TPU compiler (extra torchtpu[tpu]), or both (default: model)",
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="only rows of this metric; may be given several times",
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="only rows whose id or workload it is found in"
    )
    parser.add_argument(
        "--rows", action="store_true", help="list every row of a metric, not only the worst of many"
    )
    cli.add_format(parser)


def _run(arguments: argparse.Namespace) -> int:
    chosen = select(arguments.metric, arguments.only)
    oracles = (MODEL, LIBTPU) if arguments.oracle == BOTH else (arguments.oracle,)
    found = {oracle: predict(chosen, oracle) for oracle in oracles}
    if arguments.format == "json":
        cli.write_json(to_json(found))
    else:
        every = arguments.rows or bool(arguments.only)
        sys.stdout.write(render(found, every))
    return cli.EXIT_OK


def select(metrics: Sequence[str], only: str) -> list[Row]:
    """The rows of some metrics (all where there are none) that a pattern is found in.

    Raises CommandError for a metric or pattern without rows.
    """
    known = dict.fromkeys(row.metric for row in rows())
    unknown = [metric for metric in metrics if metric not in known]
    if unknown:
        raise cli.CommandError(
            f"torchtpu-perf validate: unknown metric {unknown[0]!r}, expected one of "
            f"{', '.join(known)}"
        )
    try:
        pattern = re.compile(only)
    except re.error as error:
        raise cli.CommandError(f"torchtpu-perf validate: --only {only!r}: {error}") from error
    found = [
        row
        for row in rows()
        if (not metrics or row.metric in metrics)
        and (pattern.search(row.id) or pattern.search(row.workload))
    ]
    if not found:
        raise cli.CommandError(f"torchtpu-perf validate: no row matches --only {only!r}")
    return found


def predict(chosen: Sequence[Row], oracle: str) -> list[Answer]:
    """What an oracle says of rows, in their order. Raises CommandError where libtpu is missing."""
    compiled = _compiled(chosen) if oracle == LIBTPU else {}
    runs = published_scripts.Runs(oracle=oracle)
    return [compiled.get(row.id) or _answer(row, runs) for row in chosen]


def _answer(row: Row, runs: published_scripts.Runs) -> Answer:
    if row.kind in published_scripts.KINDS:
        _progress(row.id)
        return runs.answer(row)
    try:
        return Answer(row=row, predicted=kernels.predict(row))
    except IncompleteChip as error:
        return Answer(row=row, reason=str(error))


def _progress(text: str) -> None:
    """Say on a terminal's stderr what is being worked on: an estimate may take a minute."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


def _compiled(chosen: Sequence[Row]) -> Mapping[str, Answer]:
    """Kernel rows through the TPU compiler. It times no collectives: those are the model's."""
    from torchtpu.cli import published_compiled
    from torchtpu.targets import TargetError

    try:
        mine = [row for row in chosen if row.kind in published_compiled.KINDS]
        made = published_compiled.answers(mine)
    except TargetError as error:
        raise cli.CommandError(str(error)) from error
    return {answer.row.id: answer for answer in made}


COMMAND = cli.Subcommand(
    name="validate",
    help="predict the published measurements and print the errors",
    configure=_configure,
    run=_run,
)
