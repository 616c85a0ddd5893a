"""Where in the user's program we are: for error notes and reports."""

from __future__ import annotations

import contextlib
import sys
from functools import cache
from pathlib import Path

import jax
import torch

_PACKAGE = Path(__file__).parent.parent
_LIBRARIES = tuple(
    str(folder.resolve())
    for folder in (
        *(p for p in _PACKAGE.iterdir() if p.is_dir()),  # three of them are links in a checkout
        _PACKAGE,
        Path(torch.__file__).parent,
        Path(jax.__file__).parent,
        Path(contextlib.__file__).parent,
    )
)


@cache
def _is_library(filename: str) -> bool:
    return filename.startswith("<") or str(Path(filename).resolve()).startswith(_LIBRARIES)


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
