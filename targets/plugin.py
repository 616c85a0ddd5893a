"""JAX's client of the platform tpu, from a library that may be broken: it ends in an error, not us.

The client is JAX's own, since a chip has one owner and lowering asks JAX for its default device.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from torchtpu.private import jax as private
from torchtpu.targets import child
from torchtpu.targets.base import TargetError

VARIABLE = "PJRT_NAMES_AND_LIBRARY_PATHS"  # JAX's: NAME:PATH,...
_PLATFORM = "tpu"


def named(environment: Mapping[str, str]) -> str:
    """Return the library that stands in for libtpu in PJRT_NAMES_AND_LIBRARY_PATHS; "" for none."""
    for entry in environment.get(VARIABLE, "").split(","):
        name, _, library = entry.partition(os.path.pathsep)
        if name.strip() == _PLATFORM:
            return library.strip()
    return ""


def client(library: str, *, timeout_s: float, apart: bool) -> Any:
    """Let JAX load a library and start its client; TargetError says what went wrong.

    apart: try it in a process of its own before, since a library can end its process.
    """
    if apart:
        _try_apart(library, timeout_s)
    made: list[Any] = []

    def start() -> None:
        try:
            made.append(_start())
        except Exception as error:
            made.append(error)

    thread = threading.Thread(target=start, daemon=True)  # jaxlib waits without the GIL
    thread.start()
    thread.join(timeout_s)
    if not made:
        raise TargetError(_late(library, timeout_s))
    if isinstance(made[0], Exception):
        raise TargetError(f"{library} did not start: {child.first_line(made[0])}") from made[0]
    return made[0]


def _start() -> Any:
    return private.client_of(_PLATFORM)


def _try_apart(library: str, timeout_s: float) -> None:
    answer = child.ask(__name__, limit_s=timeout_s)
    if answer.is_late:
        raise TargetError(_late(library, timeout_s))
    if answer.failure:
        raise TargetError(f"{library} did not start: {answer.failure}")


def _late(library: str, timeout_s: float) -> str:
    return (
        f"{library} did not start within {timeout_s:g} s; it may wait for the network, for other "
        "hosts (TPU_WORKER_HOSTNAMES) or for a chip that another process holds; "
        "TORCHTPU_START_TIMEOUT gives it longer"
    )


if __name__ == "__main__":
    logging.disable()  # JAX says of every plugin that it is experimental
    try:
        _start()
    except Exception as problem:
        sys.exit(child.first_line(problem))
    sys.stdout.write("true\n")
