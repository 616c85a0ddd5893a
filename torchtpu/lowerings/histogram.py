"""Histograms of any number of dims: bin edges, and the (weighted) counts between them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax.numpy as jnp

from torchtpu.lowerings.factories import spaced
from torchtpu.lowerings.registry import Array, lowering

Edges = Sequence[Array]


def _outer_edges(points: Array, limits: Array | None) -> tuple[Array, Array]:
    """First and last edge of each column of points [count, dims]; half a unit around one value."""
    if limits is not None:
        low, high = limits[0::2], limits[1::2]
    elif points.shape[0] == 0:
        low, high = jnp.zeros(points.shape[1]), jnp.ones(points.shape[1])
    else:
        low, high = jnp.min(points, 0), jnp.max(points, 0)
    same = low == high
    return jnp.where(same, low - 0.5, low), jnp.where(same, high + 0.5, high)


def _equal_bins(points: Array, bins: Sequence[int], limits: Array | None) -> list[Array]:
    low, high = _outer_edges(points, limits)
    dtype = points.dtype
    return [spaced(low[d], high[d], count + 1, dtype) for d, count in enumerate(bins)]


def _counts(points: Array, edges: Edges, weight: Array | None, density: bool) -> Array:
    """[count, dims] -> the sum of weights in each bin; a bin holds its lower edge, the last both.

    The density is divided by the sum of all and by the volume of each bin.
    """
    shape = tuple(e.shape[0] - 1 for e in edges)
    place, inside = jnp.zeros(points.shape[0], jnp.int32), jnp.ones(points.shape[0], bool)
    for column, edge, bins in zip(points.T, edges, shape, strict=True):
        inside &= (column >= edge[0]) & (column <= edge[-1])
        found = jnp.searchsorted(edge, column, side="right") - 1
        place = place * bins + jnp.clip(found, 0, bins - 1).astype(jnp.int32)
    weights = jnp.ones((), points.dtype) if weight is None else weight.reshape(-1)
    counts = jnp.zeros(prod(shape), points.dtype).at[place].add(jnp.where(inside, weights, 0))
    counts = counts.reshape(shape)
    if density:
        counts = counts / jnp.sum(counts)
        for d, edge in enumerate(edges):
            counts = counts / jnp.diff(edge).reshape(-1, *(1,) * (len(shape) - 1 - d))
    return counts


def _rows(x: Array) -> Array:
    """[*, dims] -> [count, dims]."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


@lowering("aten::histogram.bin_ct", compute="output")
def histogram(
    self: Array,
    bins: int = 100,
    range: Array | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """Counts in `bins` equal bins over the range, or over the data's own, and the edges."""
    points = self.reshape(-1, 1)
    edges = _equal_bins(points, (bins,), range)
    return _counts(points, edges, weight, density), edges[0]


@lowering("aten::histogram.bins_tensor", compute="output")
def histogram_between(
    self: Array, bins: Array, weight: Array | None = None, density: bool = False
) -> tuple[Array, Array]:
    """Counts between increasing edges, and the edges."""
    return _counts(self.reshape(-1, 1), (bins,), weight, density), bins


@lowering("aten::_histogramdd_bin_edges", compute="output")
def histogramdd_bin_edges(
    self: Array,
    bins: Sequence[int],
    range: Array | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> list[Array]:
    """Edges of equal bins for each column of [*, dims]."""
    return _equal_bins(_rows(self), bins, range)


@lowering("aten::_histogramdd_from_bin_cts", compute="output")
def histogramdd_from_bin_cts(
    self: Array,
    bins: Sequence[int],
    range: Array | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> Array:
    """Counts of rows of [*, dims] in equal bins, one dim of the result for each column."""
    points = _rows(self)
    return _counts(points, _equal_bins(points, bins, range), weight, density)


@lowering("aten::_histogramdd_from_bin_tensors", compute="output")
def histogramdd_from_bin_tensors(
    self: Array, bins: Edges, weight: Array | None = None, density: bool = False
) -> Array:
    """Counts of rows of [*, dims] between the edges of each column."""
    return _counts(_rows(self), bins, weight, density)
