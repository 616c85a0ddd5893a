"""The line on a terminal while a program compiles: only there, only for long ones, then gone."""

from __future__ import annotations

import io
import logging
import sys
import threading

import pytest

from torchtpu.recompiles import progress


class Terminal(io.StringIO):
    """Looks like a terminal; tells when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count


def _watchers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "torchtpu-progress"]


def test_a_long_compile_shows_a_line_and_erases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    with progress.shown("mm+relu"):
        assert terminal.written.wait(30)
    assert terminal.getvalue().startswith("\r\x1b[K[torchtpu] compiling mm+relu: 0 s")
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert _watchers() == []


def test_a_short_one_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.shown("mm"):
        assert len(_watchers()) == 1
    assert terminal.getvalue() == ""
    assert _watchers() == []


def test_no_terminal_no_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    with caplog.at_level(logging.INFO, "torchtpu.compiles"), progress.shown("mm"):
        assert _watchers() == []
    assert caplog.messages[0].startswith("compiled mm in 0.0")


def test_a_failed_compile_erases_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "AFTER_S", 0.0)

    def fail() -> None:
        with progress.shown("mm"):
            assert terminal.written.wait(30)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert _watchers() == []
