"""`torchtpu-perf`: chips, and estimates of scripts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torchtpu.cli import calibrate, validate
from torchtpu.perf_model import cli


def _options(parser: argparse.ArgumentParser) -> None:
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
        "--topology",
        default="",
        metavar="SHAPE",
        help="chips of a slice, such as 16x16 or 4x4x8: the script is one of so many processes",
    )
    parser.add_argument(
        "--slices",
        type=int,
        default=1,
        metavar="N",
        help="slices joined by the data center network",
    )
    parser.add_argument(
        "--rank", type=int, default=0, metavar="R", help="which rank the script is (default: 0)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=4,
        metavar="N",
        help="stop the script after N steps (default: 4)",
    )
    parser.add_argument(
        "--oracle",
        choices=("model", "libtpu", "both"),
        default="",
        help="our own model, the TPU compiler, or both side by side (default: libtpu where the "
        "extra torchtpu[tpu] is installed)",
    )
    cli.add_format(parser)


def _configure(parser: argparse.ArgumentParser) -> None:
    _options(parser)
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        help="the Python script, as it would be run by `python SCRIPT`, and its arguments; after "
        "-- also those that look like ours",
    )


def _after_the_script(arguments: argparse.Namespace) -> list[str]:
    """Take our options out of what follows the script's name; return the script's arguments."""
    if not arguments.script:
        raise cli.CommandError("torchtpu-perf estimate: expected a script (see --help)")
    given: list[str]
    arguments.script, *given = arguments.script
    end = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(
        prog="torchtpu-perf estimate", add_help=False, allow_abbrev=False, exit_on_error=False
    )
    _options(parser)
    try:
        _, rest = parser.parse_known_args(given[:end], arguments)
    except argparse.ArgumentError as error:
        raise cli.CommandError(f"torchtpu-perf estimate: {error}") from error
    return rest + given[end + 1 :]


def _run(arguments: argparse.Namespace) -> int:
    from torchtpu.estimate import ScriptError, estimate_script
    from torchtpu.perf_model import report
    from torchtpu.perf_model.network.collectives import CollectiveError
    from torchtpu.perf_model.network.topology import TopologyError

    script_arguments = _after_the_script(arguments)
    if arguments.steps < 1:
        raise cli.CommandError(f"torchtpu-perf: --steps expected at least 1, got {arguments.steps}")
    try:
        found = estimate_script(
            arguments.script,
            script_arguments,
            chip=arguments.chip,
            mode=arguments.mode,
            max_steps=arguments.steps,
            topology=arguments.topology,
            slices=arguments.slices,
            rank=arguments.rank,
            oracle=arguments.oracle,
        )
    except (ScriptError, TopologyError, CollectiveError) as error:
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
cli.register(validate.COMMAND)
cli.register(calibrate.COMMAND)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(main())
