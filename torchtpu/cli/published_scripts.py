"""Published training and serving rows: their command lines through `torchtpu-perf estimate`, in
processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtpu.perf_model.chip import load
from torchtpu.perf_model.validation import serving
from torchtpu.perf_model.validation.rows import Row, compiler_flags
from torchtpu.perf_model.validation.table import Answer

KINDS = ("training", "serving")
SCRIPT = Path(__file__).parents[2] / "examples" / "llm.py"
_LIMIT_S = 1800.0
_STEPS = "2"  # the second step is one like all others


class RunError(Exception):
    """A command line without an estimate; the message is the reason."""


@dataclass(slots=True)
class Runs:
    """Runs each command line once. `script` is examples/llm.py, which the wheel does not hold."""

    oracle: str
    script: Path = SCRIPT
    limit_s: float = _LIMIT_S
    _known: dict[tuple[str, ...], float | str] = field(default_factory=dict)

    def answer(self, row: Row) -> Answer:
        """What the oracle says of a row of one of KINDS."""
        try:
            return Answer(row=row, predicted=self._predict(row))
        except RunError as error:
            return Answer(row=row, reason=str(error))

    def _predict(self, row: Row) -> float:
        config = row.config
        if row.kind == "training":
            return _training(row, self.step_s(row, config["arguments"]))
        prefill = config["prefill"]
        prefill_s = self.step_s(row, prefill) / int(_option(prefill, "--batch", "1"))
        decode_s = [self.step_s(row, each) for each in serving.decode_points(config)]
        found = serving.value(row.metric, config, prefill_s, decode_s)
        if row.unit == "ms":
            return found * 1e3
        chips = _ranks(config["decode"]) / load(row.chip).devices_per_chip
        return found / chips if _per_chip(row) else found

    def step_s(self, row: Row, arguments: Sequence[str]) -> float:
        """Seconds of a step of a command line. Raises RunError."""
        where = ("--chip", row.chip, "--topology", row.config["topology"])
        slices = ("--slices", str(row.config["slices"]), "--oracle", self.oracle)
        command = (*where, *slices, "--format", "json", "--", "--steps", _STEPS, *arguments)
        flags = compiler_flags(row) if self.oracle == "libtpu" else ""
        key = (flags, *command)
        if key not in self._known:
            self._known[key] = self._run(command, flags, must_fit=row.kind == "serving")
        found = self._known[key]
        if isinstance(found, str):
            raise RunError(found)
        return found

    def _run(self, command: Sequence[str], flags: str, *, must_fit: bool) -> float | str:
        if not self.script.exists():
            return f"{self.script} is not there: it belongs to the source tree"
        # The script comes first: argparse takes a "--" right behind it for its own.
        done = _child([str(self.script), *command], self.limit_s, flags)
        return done if isinstance(done, str) else _step_s(done, must_fit=must_fit)


def _child(arguments: Sequence[str], limit_s: float, flags: str) -> Any:
    """The JSON of `torchtpu-perf estimate`, or why there is none; the user's own flags go last."""
    given = {"LIBTPU_INIT_ARGS": f"{flags} {os.environ.get('LIBTPU_INIT_ARGS', '')}"}
    paths = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "torchtpu.cli.perf", "estimate", *arguments],
            env=os.environ | paths | (given if flags else {}),
            capture_output=True,
            text=True,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no estimate within {limit_s:g} s"
    start = done.stdout.find('{\n  "format"')
    if done.returncode or start < 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = [line for line in lines if ": error: " in line] or lines  # of the script's parser
        return said[-1] if said else f"exit code {done.returncode} and no estimate"
    return json.loads(done.stdout[start:])


def _step_s(report: Any, *, must_fit: bool) -> float | str:
    """Seconds of the last step of an estimate; why not, where it needs more memory than there is
    and must fit.
    """
    steps = report.get("steps") or []
    if not steps:
        return "the script made no step"
    memory = steps[-1].get("memory") or {}
    if must_fit and not memory.get("fits", True):
        need, there = (memory[key] / 2**30 for key in ("peak_bytes", "usable_bytes"))
        return f"does not fit: {need:.1f} GiB of {there:.2f} GiB of HBM"
    return float(steps[-1]["time_s"])


def _training(row: Row, step_s: float) -> float:
    """The row's quantity from the time of its step. Raises RunError."""
    if row.metric == "step_time":
        return step_s
    if row.metric == "tokens_per_s_per_chip":
        return float(row.config["tokens"]) / step_s
    return float(row.config["model_flops"]) / step_s / 1e12


def _per_chip(row: Row) -> bool:
    return row.unit.endswith("/chip")


def _ranks(arguments: Sequence[str]) -> int:
    """Ranks that serve."""
    return int(_option(arguments, "--tensor", "1")) * int(_option(arguments, "--data", "1"))


def _option(arguments: Sequence[str], name: str, default: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else default
