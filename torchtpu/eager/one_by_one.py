"""What becomes of a recording whose program fails: its calls run one by one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torchtpu import executor
from torchtpu.eager import blame
from torchtpu.eager.joined import Wiring
from torchtpu.errors import TpuError

log = logging.getLogger("torchtpu")


Step = tuple[Any, Wiring, str]  # call, where its inputs come from, the user's line


class _Lost:
    """In place of a value that depends on what failed."""


def run(steps: Sequence[Step], arrays: Sequence[Any], error: Exception) -> list[Any]:
    """Return the values of all calls, None for those that cannot be computed.

    The error gets a note with the first op that fails by itself too, and its line. Raises nothing:
    where every value is there, the error is only logged.
    """
    values: list[Any] = []
    alone = not isinstance(error, TpuError) and not any(_is_gone(a) for a in arrays)
    for call, wiring, line in steps:
        inputs = [values[w] if w >= 0 else arrays[-1 - w] for w in wiring]
        outputs: Sequence[Any] = [_Lost] * len(call.program.outputs)
        if alone and not any(value is _Lost for value in inputs):
            try:
                program = replace(call.program, donated=())
                outputs = executor.current().executable(program).run(inputs)
            except Exception:
                blame.annotate(error, call.name, line)
        values.extend(outputs)
    if any(value is _Lost for value in values):
        lines = [line for _, _, line in steps if line] or [""]
        blame.annotate(error, f"a program of {len(steps)} ops", f"{lines[0]} to {lines[-1]}")
    else:
        log.warning("a program of %d ops ran one by one: %s", len(steps), error)
    return [None if value is _Lost else value for value in values]


def _is_gone(array: Any) -> bool:
    """Tell whether the failed program had taken over an array's memory."""
    deleted = getattr(array, "is_deleted", None)
    return bool(deleted is not None and deleted())
