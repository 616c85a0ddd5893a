"""The command line `torchtpu-perf`: `chips` is here, higher layers register further subcommands."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model import chip_report
from torchtpu.perf_model.chip import IncompleteChip, UnknownChip
from torchtpu.perf_model.facts import FactError
from torchtpu.perf_model.program import ProgramError

EXIT_OK, EXIT_ERROR = 0, 2


class CommandError(Exception):
    """A user error: its message goes to stderr, the exit code is 2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subcommand:
    """A subcommand: `configure` adds its arguments, `run` does it and returns the exit code."""

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


_SUBCOMMANDS: dict[str, Subcommand] = {}


def register(command: Subcommand) -> None:
    """Add a subcommand to `main`. Raises ValueError for a name that is taken."""
    if command.name in _SUBCOMMANDS:
        raise ValueError(f"[cli] {command.name}: a second subcommand of that name")
    _SUBCOMMANDS[command.name] = command


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{self.prog}: {message} (see {self.prog} --help)")


def add_format(parser: argparse.ArgumentParser) -> None:
    """The option --format text|json."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="how to print (default: text)"
    )


def write_json(data: object) -> None:
    """Print data as JSON."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def _configure_chips(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show every fact of this chip, with sources")
    add_format(parser)


def _run_chips(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        if arguments.format == "json":
            write_json(chip_report.chips_json())
        else:
            sys.stdout.write(chip_report.chips_table())
        return EXIT_OK
    chip = chips.load(arguments.name)
    if arguments.format == "json":
        write_json(chip_report.chip_json(chip))
    else:
        sys.stdout.write(chip_report.chip_text(chip))
    return EXIT_OK


register(
    Subcommand(
        name="chips",
        help="list the TPU chips that estimates can be made for",
        configure=_configure_chips,
        run=_run_chips,
    )
)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="torchtpu-perf", description="What a PyTorch program costs on a TPU, without a TPU."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for command in _SUBCOMMANDS.values():
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.configure(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0, or 2 with one message on stderr for a user error."""
    try:
        arguments = _parser().parse_args(argv)
        return int(arguments.run(arguments))
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else EXIT_OK
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_OK
    except (CommandError, UnknownChip, IncompleteChip, FactError, ProgramError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_ERROR
