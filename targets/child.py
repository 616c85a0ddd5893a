"""Questions answered in a process of their own: one that blocks or dies is an answer too."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

_LAST_LINES = 30
_AFTER_KILL_S = 1.0
_FATAL = re.compile(r"F\d{4} ")  # as XLA and libtpu log what they end with, before a stack trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a process has answered in JSON, or why it has not."""

    value: Any = None
    failure: str = ""  # empty where there is a value
    is_late: bool = False  # the failure is that it did not answer in time
    details: str = ""  # its last lines on stderr
    seconds: float = 0.0


def ask(
    module: str,
    *arguments: str,
    limit_s: float,
    python: str = sys.executable,
    paths: Sequence[str] | None = None,
) -> Answer:
    """Run `python -m MODULE`, whose last line on stdout is its answer.

    paths: where an interpreter other than this one finds modules, beside its own.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        # -P: files in the user's working directory are no part of the question
        [python, "-P", "-m", module, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(_paths() if paths is None else paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # to be ended with what it has started itself
    )
    try:
        with _ended_at_exit(process):
            stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        late = f"no answer within {limit_s:g} s"
        return Answer(failure=late, is_late=True, details=_killed(process))
    seconds = time.monotonic() - start
    value = _last_json(stdout)
    details = "\n".join(stderr.splitlines()[-_LAST_LINES:])
    if process.returncode or value is None:
        return Answer(failure=_end(process.returncode, stderr), details=details, seconds=seconds)
    return Answer(value=value, details=details, seconds=seconds)


def _paths() -> list[str]:
    """Where this process finds modules, however it came to know of it; not where it works.

    What belongs to the interpreter the other process knows; it would look there twice.
    """
    paths = dict.fromkeys([*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path])
    own = tuple(f"{prefix}{os.sep}" for prefix in (sys.prefix, sys.base_prefix))
    return [p for p in paths if p and os.path.abspath(p) != os.getcwd() and not p.startswith(own)]


def first_line(error: Exception) -> str:
    """Return what an error says in a line: the last word of a process that cannot answer."""
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def _ended_at_exit(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a process with this one, which the user may interrupt."""
    kill = partial(_kill, process)
    atexit.register(kill)
    try:
        yield
    finally:
        atexit.unregister(kill)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _killed(process: subprocess.Popen[str]) -> str:
    _kill(process)
    with suppress(subprocess.TimeoutExpired):  # a driver may hold it
        return process.communicate(timeout=_AFTER_KILL_S)[1]
    return ""


def _last_json(stdout: str) -> Any:
    with suppress(ValueError, IndexError):
        return json.loads(stdout.splitlines()[-1])
    return None


def _end(code: int, stderr: str) -> str:
    """Say how a process without an answer ended, with its last word."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = next(reversed(lines), "")
    if code < 0:
        why = next((line for line in lines if _FATAL.match(line)), last)
        return f"the process was ended by {signal.Signals(-code).name}" + (why and f": {why}")
    return last or f"the process ended with exit code {code} and no answer"
