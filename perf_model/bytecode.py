"""Keeps the StableHLO that a graph was read from, for whoever hands it to a real compiler."""

from __future__ import annotations

import io
import zlib
from typing import Any  # jaxlib's MLIR bindings are untyped
from weakref import WeakKeyDictionary

from torchtpu.perf_model.program import Graph

_LEVEL = 1  # of zlib: bytecode halves at once, more levels gain little
_KEPT: WeakKeyDictionary[Graph, bytes] = WeakKeyDictionary()


def keep(graph: Graph, module: Any) -> None:
    """Keep a module's MLIR bytecode, compressed, for as long as its graph lives."""
    text = io.BytesIO()
    module.operation.write_bytecode(text)
    _KEPT[graph] = zlib.compress(text.getvalue(), _LEVEL)


def kept(graph: Graph) -> bytes | None:
    """Return the bytecode of a graph's module; None where none was kept."""
    found = _KEPT.get(graph)
    return None if found is None else zlib.decompress(found)
