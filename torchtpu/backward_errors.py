"""Exceptions of autograd hooks on device tpu: raised by backward(), as on every other device.

torch's engine leaves a hook's Python exception pending while it unwinds through its stream guard.
The guard of a Python backend calls Python there, which fails and ends the process. Our guard takes
the pending exception away first, and backward raises it again.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

_noop = ctypes.pythonapi.Py_IsInitialized  # ctypes raises what is pending after any such call
_noop.restype = None
_taken: list[BaseException] = []


def take_pending() -> None:
    """Put the calling thread's pending exception aside, if there is one."""
    try:
        _noop()
    except BaseException as pending:
        _taken.append(pending)


def install() -> None:
    """Let backward() and grad() raise what take_pending has put aside."""
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        _taken.clear()
        try:
            return run(*args, **kwargs)
        except BaseException as error:
            if _taken:
                raise _taken[0] from error
            raise

    torch.autograd.graph._engine_run_backward = run_backward
    vars(torch.autograd)["_engine_run_backward"] = run_backward
