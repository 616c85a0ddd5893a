"""Calls that run at once, each in a thread; one that raises or blocks does not hold up the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def together(calls: Mapping[str, Callable[[], T]], limit_s: float) -> dict[str, T | Exception]:
    """Return what each call has returned or raised, a TimeoutError for one that takes longer."""
    found: dict[str, T | Exception] = {}

    def run(name: str) -> None:
        try:
            found[name] = calls[name]()
        except Exception as error:
            found[name] = error

    # daemon: a thread that blocks must not keep the command from ending
    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in calls]
    for thread in threads:
        thread.start()
    end = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return {n: found.get(n, TimeoutError(f"no answer within {limit_s:g} s")) for n in calls}
