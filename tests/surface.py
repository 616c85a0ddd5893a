"""Calls every method of a class of torch with plausible arguments, in a process of its own.

`python -m tests.surface Tensor 0 2` walks the first of two shards. The last line that it
wrote names the call that ended the process, if one did.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

CLASSES: dict[str, type] = {
    "Tensor": torch.Tensor,
    "UntypedStorage": torch.UntypedStorage,
    "TypedStorage": torch.TypedStorage,
}
SECONDS = 20  # for one call

# These take the address of a C++ object and follow it, whatever the device is.
TAKES_AN_ADDRESS = {"_expired", "_free_weak_ref", "_new_with_weak_ptr"}
NOT_METHODS = {
    "__class__",
    "__init_subclass__",
    "__new__",
    "__subclasshook__",
    "__getattribute__",
    "__del__",
}


class Hang(BaseException):
    """A call took longer than SECONDS."""


def main(kind: str, shard: int, shards: int) -> None:
    """Walk the methods of a class; prints each call before it is made, and DONE at the end."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _hang)
    for name, index in list(calls(kind))[shard::shards]:
        sys.stdout.write(f"{name} {index}\n")
        sys.stdout.flush()
        call(kind, name, index)
        assert (tensor() + 1).sum().item() == 10, f"the device is lost after {name}"
    sys.stdout.write("DONE\n")
    sys.stdout.flush()
    os._exit(0)  # what the calls left behind is none of this test's matter


def calls(kind: str) -> Iterator[tuple[str, int]]:
    """Yield (method, number of its arguments)."""
    names = sorted(set(dir(CLASSES[kind])) - NOT_METHODS - TAKES_AN_ADDRESS)
    for name in names:
        known = kind == "Tensor" and hasattr(torch.ops.aten, name)  # ops have tests of their own
        for index in range(1 if known else len(arguments(kind))):
            yield name, index


def call(kind: str, name: str, index: int) -> None:
    """Make one call; any Exception is an answer, anything else is not."""
    owner = made(kind)
    signal.alarm(SECONDS)
    try:
        found = getattr(owner, name)
        result = found(*arguments(kind)[index]) if callable(found) else found
        if hasattr(result, "__next__"):
            next(result, None)
        repr(result)
    except Exception:
        return
    finally:
        signal.alarm(0)


def arguments(kind: str) -> list[tuple[Any, ...]]:
    """Return the argument lists that every method is called with."""
    few: list[tuple[Any, ...]] = [
        (),
        (made(kind),),
        (1,),
        (tensor(), tensor()),
        (torch.float64,),
        (-1, 0),
    ]
    if kind == "Tensor":
        return few
    many: list[tuple[Any, ...]] = [
        (0,),
        ("cpu",),
        ("tpu",),
        (None,),
        ([0],),
        (slice(0, 1),),
        (0, 1),
        (1, 1, 2),
        (tensor(),),
        (io.BytesIO(), False, True, 4),
        (io.BytesIO(b"\0" * 64), 0, False, 4),
        ("x", 0, 0, 0),
        (2.5,),
    ]
    return few + many


def made(kind: str) -> Any:
    """Return a new object of the class, on tpu."""
    if kind == "Tensor":
        return tensor()
    untyped = tensor().untyped_storage()
    if kind == "UntypedStorage":
        return untyped
    return torch.TypedStorage(wrap_storage=untyped, dtype=torch.float32, _internal=True)


def tensor() -> torch.Tensor:
    """Return [[0, 1], [2, 3]] on tpu."""
    return torch.arange(4.0, device="tpu").reshape(2, 2)


def _hang(_signal: int, _frame: object) -> None:
    raise Hang


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
