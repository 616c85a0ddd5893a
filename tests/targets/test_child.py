"""Questions to other processes: every way in which one can end is an answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from torchtpu.targets import child

T = TypeVar("T")


def ask(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float = 60.0
) -> child.Answer:
    (tmp_path / "asked.py").write_text(f"import os, sys, time\n{code}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return child.ask("asked", "an argument", limit_s=limit_s)


def test_the_last_line_is_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('a library speaks'); print('{\"got\": \"%s\"}' % sys.argv[1])"
    answer = ask(code, tmp_path, monkeypatch)
    assert (answer.value, answer.failure) == ({"got": "an argument"}, "")
    assert answer.seconds > 0


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("sys.exit(3)", "the process ended with exit code 3 and no answer"),
        ("print('no JSON')", "the process ended with exit code 0 and no answer"),
        ("print('null')", "the process ended with exit code 0 and no answer"),
        ("raise ValueError('that is wrong')", "ValueError: that is wrong"),
        ("os.abort()", "the process was ended by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "the process was ended by SIGSEGV"),
        (
            "print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)",
            "the process was ended by SIGKILL: last words",
        ),
    ],
)
def test_no_answer(
    code: str, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ask(code, tmp_path, monkeypatch)
    assert (answer.value, answer.failure) == (None, failure)


def test_one_that_blocks_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('I wait', file=sys.stderr, flush=True); time.sleep(600)"
    answer = ask(code, tmp_path, monkeypatch, limit_s=1.0)
    assert answer.failure == "no answer within 1 s"


def test_what_it_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = tmp_path / "alive"
    writer = f"import time; time.sleep(3); open({str(alive)!r}, 'w')"
    code = f"import subprocess; subprocess.run([sys.executable, '-c', {writer!r}])"
    start = time.monotonic()
    assert ask(code, tmp_path, monkeypatch, limit_s=1.0).failure == "no answer within 1 s"
    time.sleep(max(0.0, start + 5 - time.monotonic()))
    assert not alive.exists()


def test_it_ends_with_an_interrupted_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked.py").write_text(
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(600)"
    )
    script = (
        # a shell that runs the tests in the background has it ignored
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from functools import partial; from torchtpu.cli.checks import together\n"
        "from torchtpu.targets import child\n"
        "together.together({'a': partial(child.ask, 'asked', limit_s=600.0)}, 600.0)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    pid = wait_for(lambda: int((tmp_path / "pid").read_text()))
    command.send_signal(signal.SIGINT)
    command.wait()
    assert wait_for(lambda: has_ended(pid))


def has_ended(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/cmdline").read_text()  # empty: nobody has waited for it yet
    except OSError:
        return True


def wait_for(look: Callable[[], T]) -> T:
    """Return what a function returns as soon as that is something."""
    while True:
        with suppress(OSError, ValueError):
            found = look()
            if found:
                return found
        time.sleep(0.05)


def test_files_in_the_working_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.py").write_text("")
    monkeypatch.chdir(elsewhere)
    code = "import importlib.util; print(int(importlib.util.find_spec('mine') is None))"
    assert ask(code, tmp_path, monkeypatch).value == 1
