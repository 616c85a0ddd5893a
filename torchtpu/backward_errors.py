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

_fetch = ctypes.pythonapi.PyErr_Fetch
_fetch.restype = None
_release = ctypes.pythonapi.Py_DecRef
_release.restype = None
_slots = (ctypes.c_void_p * 3)()  # type, value, traceback
# Prepared references: converting an argument would fail while an exception is pending.
_kind, _value, _trace = (ctypes.byref(_slots, i * ctypes.sizeof(ctypes.c_void_p)) for i in range(3))
_taken: list[BaseException] = []


def take_pending() -> None:
    """Put the calling thread's pending exception aside, if there is one."""
    _fetch(_kind, _value, _trace)
    if _slots[0]:
        kind = ctypes.cast(_slots[0], ctypes.py_object).value
        value = ctypes.cast(_slots[1], ctypes.py_object).value if _slots[1] else None
        _taken.append(value if isinstance(value, BaseException) else kind(*_as_tuple(value)))
        for i, owned in enumerate(_slots):
            if owned:
                _release(ctypes.c_void_p(owned))
            _slots[i] = None


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


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)
