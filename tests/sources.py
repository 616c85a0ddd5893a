"""The package's own sources, for tests of what may stand where."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import torchtpu

T = TypeVar("T")
_PACKAGE = Path(torchtpu.__file__).parent


def found(
    look: Callable[[str], list[T]], *, folders: tuple[str, ...], files: Collection[str]
) -> dict[str, list[T]]:
    """Return what a look at each source finds, but for those in these folders and these files."""
    sources = {f"torchtpu/{p.relative_to(_PACKAGE)}": p for p in sorted(_PACKAGE.rglob("*.py"))}
    looked = {
        name: look(path.read_text())
        for name, path in sources.items()
        if not name.startswith(folders) and name not in files
    }
    return {name: what for name, what in looked.items() if what}
