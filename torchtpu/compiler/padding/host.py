"""Padding and cutting of whole arrays, and a cut as a strided view."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from torchtpu.compiler.padding.layout import Atom, Dim, Layout, Symbol, extent, sizes

TrueSizes = Mapping[Symbol, int]


@dataclass(frozen=True, kw_only=True)
class StridedCut:
    """The valid elements of a dense padded tensor as a view: offset and strides in elements."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def true_shape(layout: Layout, true_sizes: TrueSizes) -> tuple[int, ...]:
    """Return the shape without padding."""
    return tuple(int(extent(dim).subs(true_sizes)) for dim in layout)


def strided_cut(layout: Layout, true_sizes: TrueSizes) -> StridedCut | None:
    """Return the view of the valid elements; None: they form none, and take `cut_host`'s gather."""
    step, strides = math.prod(sizes(layout)), []
    for dim in layout:
        runs: list[tuple[int, int]] = []  # (count, stride), major first
        for atom in dim:
            step //= atom.size
            runs = _joined(runs, _count(atom, true_sizes), step)
        if len(runs) > 1:
            return None
        strides.append(runs[0][1] if runs else step)
    return StridedCut(offset=0, sizes=true_shape(layout, true_sizes), strides=tuple(strides))


def _joined(runs: list[tuple[int, int]], count: int, step: int) -> list[tuple[int, int]]:
    if count == 1:
        return runs
    if runs and runs[-1][1] == count * step:
        return [*runs[:-1], (runs[-1][0] * count, step)]
    return [*runs, (count, step)]


def _count(atom: Atom, true_sizes: TrueSizes) -> int:
    return int(atom.extent.subs(true_sizes))


def _valid(dim: Dim, true_sizes: TrueSizes) -> NDArray[np.int64]:
    """Return the valid positions of a dimension in the order of their true index."""
    position = np.zeros(1, np.int64)
    for atom in dim:
        digits = np.arange(_count(atom, true_sizes))
        position = (position[:, None] * atom.size + digits).reshape(-1)
    return position


Array = TypeVar("Array", torch.Tensor, NDArray[Any])


def pad_host(array: Array, layout: Layout, true_sizes: TrueSizes, fill: float = 0) -> Array:
    """Return a torch tensor or a numpy array at the padded shape, `fill` in the padding."""
    shape = sizes(layout)
    if list(array.shape) == shape and list(true_shape(layout, true_sizes)) == shape:
        return array
    if isinstance(array, torch.Tensor):
        whole = torch.full(shape, fill, dtype=array.dtype, device=array.device)
        whole[_torch_index(layout, true_sizes)] = array
        return whole
    padded = np.full(shape, fill, dtype=array.dtype)
    padded[np.ix_(*_positions(layout, true_sizes))] = array
    return padded


def cut_host(padded: torch.Tensor, layout: Layout, true_sizes: TrueSizes) -> torch.Tensor:
    """Return the valid elements of a padded tensor."""
    cut = strided_cut(layout, true_sizes)
    if cut is not None and padded.is_contiguous():
        return padded.as_strided(cut.sizes, cut.strides, padded.storage_offset() + cut.offset)
    return padded[_torch_index(layout, true_sizes)]


def _positions(layout: Layout, true_sizes: TrueSizes) -> Sequence[NDArray[np.int64]]:
    return [_valid(dim, true_sizes) for dim in layout]


def _torch_index(layout: Layout, true_sizes: TrueSizes) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(i) for i in np.ix_(*_positions(layout, true_sizes)))
