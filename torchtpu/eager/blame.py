"""Where in the user's program we are: for error notes and reports."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import jax
import torch

_OURS = tuple(
    str(Path(p).resolve().parent)
    for p in (torch.__file__, jax.__file__, str(Path(__file__).parent), sys.modules["contextlib"].__file__ or "")
)


@cache
def _is_library(filename: str) -> bool:
    return filename.startswith("<") or str(Path(filename).resolve()).startswith(_OURS)


def user_line() -> str:
    """Return "file.py:31" of the innermost frame outside torch, jax and torchtpu; empty if none."""
    frame = sys._getframe(1)
    while frame is not None:
        if not _is_library(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]  # None at the outermost frame
    return ""


def annotate(error: BaseException, op: str) -> None:
    """Add a note with the op and the user's line to an exception, once."""
    if any(n.startswith("[torchtpu]") for n in getattr(error, "__notes__", ())):
        return
    line = user_line()
    error.add_note(f"[torchtpu] in {op}" + (f", called from {line}" if line else " (backward)"))
