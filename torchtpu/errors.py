"""The exceptions of torchtpu; a text says what was wrong, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TpuError(RuntimeError):
    """Base of torchtpu's own errors; a RuntimeError, as for every other torch device."""


class UnsupportedOpError(TpuError, NotImplementedError):
    """No lowering, decomposition or permitted fallback exists for an op."""

    def __init__(self, op: str) -> None:
        super().__init__(
            f"operator '{op}' is not implemented for TPU. Please file a feature request "
            "(TORCHTPU_FALLBACK=warn runs such ops on the CPU meanwhile)"
        )


class FreedStorageError(TpuError):
    """A storage was read after its memory was given up (resized to 0, a failed program)."""


class LoweringError(TpuError):
    """A lowering disagrees with its schema or torch's meta function: a defect of torchtpu."""


class ConfigError(TpuError, ValueError):
    """A setting has a value that does not exist."""


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return "known ones: a, b (did you mean 'a'?)" for the tail of an error message."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"known ones: {', '.join(names)}{hint}"
