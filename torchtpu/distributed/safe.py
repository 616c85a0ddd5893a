"""Regions of a program in which all ranks are known to do the same: `spmd_safe`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, overload

import torch
from torch.fx.traceback import annotate

from torchtpu.errors import TpuError

MARK = "spmd_safe"  # in `node.meta["custom"]` of what torch.compile traces there
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Module = TypeVar("_Module", bound=torch.nn.Module)


class _State(threading.local):
    depth = 0


_state = _State()


class _Region(AbstractContextManager["_Region", None]):
    """Counts how deep this thread is in regions."""

    def __enter__(self) -> _Region:
        _state.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        _state.depth -= 1


@overload
def spmd_safe(fn: None = None) -> AbstractContextManager[Any]: ...
@overload
def spmd_safe(fn: _Module) -> _Module: ...
@overload
def spmd_safe(fn: Callable[_P, _R]) -> Callable[_P, _R]: ...
def spmd_safe(fn: Any = None) -> Any:
    """Promise that all ranks run the same ops in the same order in here, with the same shapes.

    A decorator of a function, a context manager where none is given; a module's forward is
    decorated in place, and the module returned. Programs may then hold collectives together with
    the ops around them. What breaks the promise is found out at the collective, as anywhere.
    TpuError for what cannot be called.
    """
    if fn is None:
        return annotate({MARK: True}) if torch.compiler.is_dynamo_compiling() else _Region()
    if isinstance(fn, torch.nn.Module):
        fn.forward = spmd_safe(fn.forward)
        return fn
    if not callable(fn):
        raise TpuError(f"[spmd_safe] expected a function, a module or nothing, got {fn!r}")

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            with annotate({MARK: True}):
                return fn(*args, **kwargs)
        with _Region():
            return fn(*args, **kwargs)

    return call


def is_spmd_safe() -> bool:
    """Tell whether this thread is in such a region."""
    return _state.depth > 0


def is_marked(node: torch.fx.Node) -> bool:
    """Tell whether a node of a graph of torch.compile comes from such a region."""
    return bool(node.meta.get("custom", {}).get(MARK))
