"""`torchtpu-perf`: chips, and estimates of scripts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torchtpu.perf_model import cli


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chip", default="v6e", help="a chip of `torchtpu-perf chips` (default: v6e)"
    )
    parser.add_argument(
        "--mode",
        choices=("fused", "strict"),
        default="fused",
        help="a step as one compiled program, or one program per op (default: fused)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=4,
        metavar="N",
        help="stop the script after N steps (default: 4)",
    )
    cli.add_format(parser)
    parser.add_argument("script", help="the Python script, as it would be run by `python SCRIPT`")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")


def _run(arguments: argparse.Namespace) -> int:
    from torchtpu.estimate import ScriptError, estimate_script
    from torchtpu.perf_model import report

    if arguments.steps < 1:
        raise cli.CommandError(f"torchtpu-perf: --steps expected at least 1, got {arguments.steps}")
    try:
        found = estimate_script(
            arguments.script,
            arguments.arguments,
            chip=arguments.chip,
            mode=arguments.mode,
            max_steps=arguments.steps,
        )
    except ScriptError as error:
        raise cli.CommandError(str(error)) from error
    if arguments.format == "json":
        cli.write_json(report.to_json(found))
    else:
        sys.stdout.write(report.render_text(found))
    return cli.EXIT_OK


cli.register(
    cli.Subcommand(
        name="estimate",
        help="predict the step time and memory of a script on a TPU, without one",
        configure=_configure,
        run=_run,
    )
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(main())
