"""The logger `torchtpu` and its topics; on stderr only where TORCHTPU_LOG asks for it."""

from __future__ import annotations

import logging
import sys

from torchtpu import config

recompiles = logging.getLogger("torchtpu.recompiles")  # why a program compiled again
compiles = logging.getLogger("torchtpu.compiles")  # every compile and its seconds
cache = logging.getLogger("torchtpu.cache")  # what the tiers outside the process load and keep


class _ToStderr(logging.StreamHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Writes to what sys.stderr is now: notebooks and tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_handler = _ToStderr()
_handler.setFormatter(logging.Formatter("[torchtpu] %(message)s"))


def start() -> None:
    """Write the topics of TORCHTPU_LOG to stderr."""
    for topic in config.get("log"):
        logger = logging.getLogger(f"torchtpu.{topic}")
        logger.setLevel(logging.INFO)
        logger.addHandler(_handler)
