"""What the framework above a simulated device tells it of the user's program, so that errors can
speak of it.
"""

from __future__ import annotations

from collections.abc import Callable

from torchtpu.sim.memory import OutOfHBM


class Context:
    """Callables that the framework sets; without one, errors say less."""

    def __init__(self) -> None:
        self.user_line: Callable[[], str] = str  # "file.py:31" of what runs now, or ""
        self.on_full: Callable[[OutOfHBM], Exception] = _as_it_is  # the error that is raised
        self.on_storage: Callable[[object, int], None] = _ignore  # is told of each new storage

    def full(self, error: OutOfHBM) -> Exception:
        """Return the error to raise for memory that is not there."""
        return self.on_full(error)

    def storage(self, holder: object, size_bytes: int) -> None:
        """A storage of so many bytes was made."""
        self.on_storage(holder, size_bytes)


def _as_it_is(error: OutOfHBM) -> Exception:
    return error


def _ignore(_holder: object, _size_bytes: int) -> None:
    return None


context = Context()
