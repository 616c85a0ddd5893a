"""What an observer sees of a simulated device: its launches, and its arrays without values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np

from torchtpu.perf_model.program import Graph

_serials = count()
_KEPT_BYTES = 1 << 16


class AbstractArray:
    """An array of which only shape and dtype exist; every one has a serial number of its own.

    What came from the host and is small keeps its value: sizes and indices that are sent round.
    """

    __slots__ = ("__weakref__", "dtype", "serial", "shape", "value")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        value: np.ndarray[Any, Any] | None = None,
    ) -> None:
        self.value = None if value is None or value.nbytes > _KEPT_BYTES else value.copy()
        self.shape = shape
        self.dtype = dtype
        self.serial = next(_serials)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch, as an observer sees it; `reuse` are (output, input) pairs that share memory."""

    graph: Graph
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    reuse: tuple[tuple[int, int], ...]


class Observed(Protocol):
    """What has launches to observe, and asks for the values of arrays that have none."""

    observer: Callable[[Launch], None] | None
    on_read: Callable[[AbstractArray], np.ndarray[Any, Any]]
