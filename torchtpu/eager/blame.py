"""Where in the user's program we are: for error notes and reports."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import FrameType

import torch
import typing_extensions


@cache
def _libraries() -> tuple[str, ...]:
    package = Path(__file__).parent.parent
    jax = importlib.util.find_spec(
        "jax"
    )  # `import torch` asks for this file, and must not import jax
    folders = (
        *(p for p in package.iterdir() if p.is_dir()),  # three of them are links in a checkout
        package,
        Path(torch.__file__).parent,
        Path(contextlib.__file__).parent,
        Path(typing_extensions.__file__),  # wraps functions of torch.distributed
        *(Path(p) for p in (jax.submodule_search_locations or () if jax else ())),
    )
    return tuple(str(f.resolve()) for f in folders)


_TYPED = ("<stdin>", "<string>", "<python-input", "<ipython-input")  # by the user, not generated


@cache
def _is_library(filename: str) -> bool:
    if filename.startswith("<"):
        return not filename.startswith(_TYPED)
    return str(Path(filename).resolve()).startswith(_libraries())


Place = tuple[str, int]  # a file and a line of it


def user_place() -> Place | None:
    """Return the innermost frame's place outside torch, jax and torchtpu; None if none is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_library(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def shown(place: Place) -> str:
    """Return a place as "file.py:31"."""
    return f"{Path(place[0]).name}:{place[1]}"


def user_line() -> str:
    """Return "file.py:31" of the innermost frame outside torch, jax and torchtpu; empty if none."""
    place = user_place()
    return shown(place) if place else ""


def annotate(error: BaseException, op: str, line: str | None = None) -> None:
    """Add a note with the op and the user's line (by default the current one), once."""
    if any(n.startswith("[torchtpu]") for n in getattr(error, "__notes__", ())):
        return
    line = user_line() if line is None else line
    error.add_note(f"[torchtpu] in {op}" + (f", called from {line}" if line else " (backward)"))
