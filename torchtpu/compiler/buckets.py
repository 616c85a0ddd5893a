"""Which sizes a dynamic dimension is compiled for: the buckets of a symbol and the rounding up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from torchtpu.errors import TpuError
from torchtpu.private.torch import int_oo

MAX_BUCKETS = 8
Symbol = Any  # sympy.Symbol, which carries no types


class BucketError(TpuError, ValueError):
    """A size lies outside the bounds of its dimension, or the bounds make no buckets."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The true sizes that a dimension may have, both ends included; `high` None: unbounded."""

    low: int = 2
    high: int | None = None


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The sizes a dimension is compiled for, ascending; empty `sizes`: all powers of two."""

    bounds: Bounds
    sizes: tuple[int, ...] = ()

    def round_up(self, size: int, name: str = "dimension") -> int:
        """Return the smallest bucket that holds `size`."""
        low, high = self.bounds.low, self.sizes[-1] if self.sizes else None
        if size < low or (high is not None and size > high):
            raise BucketError(
                f"[torch.compile] size of {name} outside its bounds, expected {low} to "
                f"{high if high is not None else 'any'}, got {size}; widen min and max of "
                "mark_dynamic, or num_dynamic_buckets and bucket_size of the compile options"
            )
        if not self.sizes:
            return _power_of_two(size)
        return self.sizes[bisect_left(self.sizes, size)]


def buckets(bounds: Bounds, *, num_dynamic_buckets: int = 4, bucket_size: int = 128) -> Buckets:
    """Return the buckets of a dimension.

    The candidates are powers of two up to `bucket_size`, then its multiples, then `bounds.high`;
    of more than `num_dynamic_buckets` (1 to 8) that many are kept, evenly spread, the last among
    them. A dimension without `high` is rounded up to powers of two, as many as its sizes need.
    """
    _check(bounds, num_dynamic_buckets, bucket_size)
    if bounds.high is None:
        return Buckets(bounds=bounds)
    found = [*_candidates(bounds.low, bounds.high, bucket_size), bounds.high]
    kept = min(num_dynamic_buckets, len(found))
    last = [(i + 1) * len(found) // kept - 1 for i in range(kept)]
    return Buckets(bounds=bounds, sizes=tuple(found[i] for i in last))


def bounds_of(graph_module: torch.fx.GraphModule) -> dict[Symbol, Bounds]:
    """Return the bounds torch knows of every size symbol in the graph's inputs."""
    found: dict[Symbol, Bounds] = {}
    for node in graph_module.graph.find_nodes(op="placeholder"):
        for size in sizes_in(node.meta.get("val")):
            ranges: Mapping[Symbol, object] = size.node.shape_env.var_to_range
            for symbol in sorted(size.node.expr.free_symbols, key=str):
                if symbol in ranges:
                    found.setdefault(symbol, _bounds(ranges[symbol]))
    return found


def sizes_in(value: object) -> Iterator[torch.SymInt]:
    """Yield the symbolic sizes of an example value: itself, or those of a tensor's shape."""
    sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else [value]
    yield from (size for size in sizes if isinstance(size, torch.SymInt))


def _bounds(value_range: object) -> Bounds:
    lower, upper = value_range.lower, value_range.upper  # type: ignore[attr-defined]  # ValueRanges
    return Bounds(
        low=max(int(lower), 0) if lower.is_finite else 0,
        high=None if upper == int_oo or not upper.is_finite else int(upper),
    )


def _check(bounds: Bounds, number: int, size: int) -> None:
    if not 1 <= number <= MAX_BUCKETS:
        raise BucketError(f"[num_dynamic_buckets] expected 1 to {MAX_BUCKETS}, got {number!r}")
    if size < 1:
        raise BucketError(f"[bucket_size] expected a positive size, got {size!r}")
    if bounds.low < 0 or (bounds.high is not None and bounds.high < max(bounds.low, 1)):
        raise BucketError(
            f"[torch.compile] empty bounds, expected 0 <= low <= high, got {bounds.low} to "
            f"{bounds.high}"
        )


def _candidates(low: int, high: int, step: int) -> Iterator[int]:
    """Yield the sizes below `high` that can be buckets."""
    size = _power_of_two(low)
    while size < min(step, high):
        yield size
        size *= 2
    for size in count(step * max(-(-low // step), 1), step):
        if size >= high:
            return
        yield size


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
