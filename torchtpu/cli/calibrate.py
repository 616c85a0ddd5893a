"""`torchtpu-perf calibrate`: fits the constants of the generations anew and writes their files."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

from torchtpu.perf_model import cli
from torchtpu.perf_model.calibration.generations import calibrate, stages_of, to_toml
from torchtpu.perf_model.fitted import DEFAULT, FOLDER


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "chips", nargs="*", help=f"generations to write, or {DEFAULT} (default: all with rows)"
    )
    parser.add_argument(
        "--folder",
        default=str(FOLDER),
        help="where the files go (default: the package's own folder)",
    )
    parser.add_argument(
        "--date", default=datetime.date.today().isoformat(), help="date of the files"
    )
    parser.add_argument("--print", action="store_true", help="print the files, write nothing")


def _run(arguments: argparse.Namespace) -> int:
    for name in arguments.chips:
        if name != DEFAULT:
            stages_of(name)
    folder = Path(arguments.folder)
    if not folder.is_dir():
        raise cli.CommandError(f"torchtpu-perf calibrate: --folder: no folder {folder}")
    for name, fitted in calibrate().items():
        if arguments.chips and name not in arguments.chips:
            continue
        text = to_toml(fitted, arguments.date)
        if arguments.print:
            sys.stdout.write(f"# {name}.toml\n{text}\n")
        else:
            (folder / f"{name}.toml").write_text(text, encoding="utf-8")
            sys.stdout.write(f"{folder / f'{name}.toml'}\n")
    return cli.EXIT_OK


COMMAND = cli.Subcommand(
    name="calibrate",
    help="fit the model's constants to the published rows again",
    configure=_configure,
    run=_run,
)
