"""Section environment: variables in force, wrong values, contradictions, likely typos."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchtpu.cli.checks.row import Row, fail, note, ok, warn
from torchtpu.config import KNOBS, Knob
from torchtpu.errors import ConfigError

_OURS = "TORCHTPU_"
_TESTS = "TORCHTPU_TEST_"  # the test suite's own
_FAMILY = (_OURS, "TORCH_TPU_", "TPU_", "PJRT_", "JAX_", "XLA_", "LIBTPU_")
_SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # torch's own
_CLOSE, _VERY_CLOSE = 0.7, 0.9  # difflib's ratio, within the family and outside of it

_KNOWN = tuple(v for knob in KNOBS.values() for v in knob.variables)
_MODES = {"debug", "strict", "fused"}


def rows(_limit_s: float) -> list[Row]:
    """Return what is set, and what is wrong with it."""
    found = [
        *(row for knob in KNOBS.values() for row in _knob(knob)),
        *_modes(),
        *(row for name in sorted(os.environ) for row in _other(name)),
    ]
    return found or [ok("variables", "none is set; README.md lists them under Settings")]


def _set(knob: Knob) -> dict[str, str]:
    return {v: os.environ[v] for v in knob.variables if v in os.environ}


def _knob(knob: Knob) -> Iterator[Row]:
    first: Row | None = None
    for variable, text in _set(knob).items():
        if first:
            yield note(variable, f"{text!r} is not read: {first.what} goes before it")
            continue
        first = _value(knob, variable, text)
        yield first


def _value(knob: Knob, variable: str, text: str) -> Row:
    try:
        knob.parse(variable, text)
    except ConfigError as error:
        return fail(variable, str(error), f"set a value that exists, or unset {variable}")
    return ok(variable, f"{text!r} ({knob.doc})")


def _modes() -> Iterator[Row]:
    """Compare what the variables that speak of the eager mode ask for."""
    allows: dict[str, Callable[[Any], set[str]]] = {
        "mode": lambda word: {word},
        "defer_and_fuse": lambda on: {"fused"} if on else {"strict", "debug"},
        "launch_blocking": lambda on: {"debug"} if on else _MODES,
    }
    set_here = {name: next(iter(_set(KNOBS[name]).items()), None) for name in allows}
    asked = {name: "=".join(found) for name, found in set_here.items() if found}
    try:
        modes = [allows[name](KNOBS[name].read()) for name in asked]
    except ConfigError:  # has a row of its own
        return
    if modes and not set.intersection(*modes):
        finding = f"{' and '.join(asked.values())} ask for different modes"
        yield warn("eager mode", finding, "keep one; the section device key says which is in force")


def _other(name: str) -> Iterator[Row]:
    if name in _KNOWN or name.startswith(_TESTS):
        return
    value, upper = os.environ[name], name.upper()
    cutoff = _CLOSE if upper.startswith(_FAMILY) else _VERY_CLOSE
    close = difflib.get_close_matches(upper, (*_KNOWN, _SWITCH), n=1, cutoff=cutoff)
    if name == "TPU_LIBRARY_PATH":
        yield _library(value)
    elif name == _SWITCH:
        yield note(name, f"{value!r} (torch's: 1 loads backends such as torchtpu)")
    elif close:
        finding = f"{value!r} is not read by torchtpu; did you mean {close[0]}?"
        yield warn(name, finding, f"rename it to {close[0]}, or unset it")
    elif upper.startswith(_OURS):
        finding = f"{value!r}: torchtpu has no such setting"
        yield warn(name, finding, "unset it; README.md lists the settings")
    elif upper.startswith(_FAMILY):
        yield note(name, f"{value!r} (no setting of torchtpu; libtpu, JAX or XLA may read it)")


def _library(path: str) -> Row:
    if not path or Path(path).is_file():
        return ok("TPU_LIBRARY_PATH", f"{path!r} (libtpu's file)")
    return warn(
        "TPU_LIBRARY_PATH",
        f"{path!r} is no file, so that no TPU can be used",
        "unset it, or name libtpu.so with its directory",
    )
