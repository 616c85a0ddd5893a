"""`python -m torchtpu.targets`: tries targets, and says which work here."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from torchtpu.cli.checks import trial
from torchtpu.cli.checks.targets import explained
from torchtpu.cli.checks.trial import State, Trial
from torchtpu.cli.doctor import add_timeout

EXIT_OK, EXIT_FAILED = 0, 1


def _print(tried: Trial) -> None:
    text, advice = tried.reason, ""
    if tried.state is State.PASS:
        text = f"{tried.device}: a program compiled, ran and gave the right numbers"
    elif tried.state is State.FAIL:
        text, advice = explained(tried)
    print(f"{tried.state:6}  {tried.spec:8}  {tried.seconds:5.2f} s  {text}")
    if advice:
        print(f"        -> {advice}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torchtpu.targets",
        description="Compile and run a small program on targets, each in a process of its own.",
        epilog="Exit code 1 where one fails, or where one that was asked for by name or by "
        "TORCHTPU_TARGET is absent.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as cpu or sim:v5e; all")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    add_timeout(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 where a target fails, or one that was asked for is absent."""
    arguments = _parser().parse_args(argv)
    trials = trial.in_children(arguments.names or trial.specs(), arguments.timeout)
    if arguments.format == "json":
        print(json.dumps([asdict(t) for t in trials], indent=2))
    else:
        for tried in trials:
            _print(tried)
    asked = trials if arguments.names else [trial.chosen(trials)]
    failed = any(t.state is State.FAIL for t in trials)
    return EXIT_FAILED if failed or any(t.state is not State.PASS for t in asked) else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
