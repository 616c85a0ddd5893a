"""A directory that compiled programs may lie in: made, private, and told from one that is not."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger("torchtpu.cache")


class Unusable(Exception):
    """A directory cannot hold a cache; the text says why and what to do."""


def prepare(path: Path, *, shared: bool) -> None:
    """Make a directory where there is none, and look at whose it is.

    What lies in it is run as native code. A directory of the host that others may write to is
    refused; one between hosts is the user's own choice, who is told. Raises Unusable.
    """
    try:
        path.mkdir(mode=0o777 if shared else 0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise Unusable(f"[cache] no directory {path}: {error}") from error
    foreign = found.st_uid not in (os.geteuid(), 0)
    writable = bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    if not shared and (foreign or writable):
        whose = f"belongs to user {found.st_uid}" if foreign else "others may write to it"
        raise Unusable(
            f"[cache] {path} holds code that would be run, but {whose}; expected a directory of "
            "your own: chmod go-w, or set TORCHTPU_CACHE_DIR"
        )
    if shared and found.st_mode & stat.S_IWOTH:
        log.warning("[cache] everybody may write to %s, and what lies there is run", path)


def default() -> Path:
    """Return the user's own cache directory as the XDG base directory specification says.

    Raises Unusable where the user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        raise Unusable("[cache] the user has no home directory; set TORCHTPU_CACHE_DIR")
    return Path(base) / "torchtpu"
