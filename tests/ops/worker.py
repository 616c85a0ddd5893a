"""A process that answers lines with lines of JSON, and whose end is an answer too."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any


class Died(Exception):
    """The process ended or took too long; the text says which."""


class Worker:
    """A command that is started when it is asked, and anew where it died."""

    def __init__(self, command: Sequence[str], patience_s: float) -> None:
        self._command, self._patience_s = command, patience_s
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: str) -> str:
        """Return the line that answers a line; Died where there is none."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        if select.select([self._process.stdout], [], [], self._patience_s)[0]:
            line = self._process.stdout.readline()
            if line:
                return line
            why = f"the process ended with {self._process.wait()}"
        else:
            why = f"it took more than {self._patience_s:.0f} s"
        self.end()
        raise Died(why)

    def end(self) -> None:
        """End the process, at once."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def serve(answer: Callable[..., Any]) -> int:
    """Be the process: call with what each line of stdin lists, until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ops print is no answer
    for line in sys.stdin:
        answers.write(json.dumps(answer(*json.loads(line))) + "\n")
        answers.flush()
    return 0
