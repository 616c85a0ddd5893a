"""Shapes of optimized HLO: dtype, sizes, layout with tiles, memory space; bytes with padding.

`bf16[4096,128]{1,0:T(8,128)(2,1)S(1)}`: minor-most dimension first, two nested tiles, in VMEM.
Tiles as in XLA's "Tiled layout" document (openxla.org/xla/tiled_layout).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torchtpu.perf_model.program import ProgramError, TensorType, dtype_bits

HBM, VMEM, SYNC, CMEM, HOST = 0, 1, 2, 3, 5
_ARRAY = re.compile(r"(\w+)\[([^\]]*)\]")
_SPACE = re.compile(r"S\((\d+)\)")
_TILES = re.compile(r"T((?:\([\d,*]+\))+)")
_INTEGERS = {"s": "i", "u": "ui"}
_NAMES = {"pred": "i1", "c64": "complex<f32>", "c128": "complex<f64>", "token": "token"}
_FLOAT8 = re.compile(r"f(\d)e(\d)m(\d)(\w*)")


class HloError(ProgramError):
    """A text that is not optimized HLO as the reader knows it."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """An array; `parts` are the elements of a tuple, which has no type of its own."""

    dtype: str = "token"  # MLIR's spelling
    sizes: tuple[int, ...] = ()
    minor_to_major: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = HBM
    parts: tuple[Shape, ...] = ()

    @property
    def type(self) -> TensorType:
        """The type without layout."""
        return TensorType(shape=self.sizes, dtype=self.dtype)

    @property
    def arrays(self) -> tuple[Shape, ...]:
        """The arrays of a tuple, also of tuples in it; an array itself."""
        return tuple(a for p in self.parts for a in p.arrays) if self.parts else (self,)

    @cached_property
    def padded_bytes(self) -> int:
        """Bytes of the array as it lies in memory, with the padding of its tiles."""
        if self.parts:
            return sum(part.padded_bytes for part in self.parts)
        order = self.minor_to_major or tuple(reversed(range(len(self.sizes))))
        dims = [self.sizes[d] for d in reversed(order)]  # major to minor
        return (padded_elements(dims, self.tiles) * dtype_bits(self.dtype) + 7) // 8

    @property
    def hbm_bytes(self) -> int:
        """The bytes of it that lie in HBM."""
        return sum(a.padded_bytes for a in self.arrays if a.space == HBM)


def padded_elements(dims: list[int], tiles: tuple[tuple[int, ...], ...]) -> int:
    """Elements of an array of `dims` (major to minor) that is laid out in nested tiles."""
    for tile in tiles:
        dims = [1] * (len(tile) - len(dims)) + dims
        outer = dims[: len(dims) - len(tile)]
        inner = dims[len(dims) - len(tile) :]
        dims = [*outer, *(-(-d // t) for d, t in zip(inner, tile, strict=True)), *tile]
    return math.prod(dims)


def parse(text: str) -> Shape:
    """Read a shape. Raises HloError."""
    shape, rest = parse_prefix(text)
    if rest.strip():
        raise HloError(f"[hlo] a shape is followed by {rest[:40]!r}")
    return shape


def parse_prefix(text: str) -> tuple[Shape, str]:
    """Read the shape at the start of a text; return what follows too."""
    text = text.lstrip()
    if text.startswith("("):
        return _tuple(text)
    found = _ARRAY.match(text)
    if found is None:
        raise HloError(f"[hlo] expected a shape, got {text[:60]!r}")
    rest = text[found.end() :]
    layout = ""
    if rest.startswith("{"):
        stop = rest.index("}")
        layout, rest = rest[1:stop], rest[stop + 1 :]
    order, _, details = layout.partition(":")
    space, tiles = _SPACE.search(details), _TILES.search(details)
    sizes = (s.strip().removeprefix("<=") for s in found[2].split(","))
    return Shape(
        dtype=_dtype(found[1]),
        sizes=tuple(int(s) for s in sizes if s),
        minor_to_major=tuple(int(d) for d in order.split(",") if d),
        tiles=tuple(_tiles(tiles[1])) if tiles else (),
        space=int(space[1]) if space else HBM,
    ), rest


def _tuple(text: str) -> tuple[Shape, str]:
    parts: list[Shape] = []
    rest = text[1:]
    while True:
        rest = re.sub(r"^(?:\s|,|/\*.*?\*/)+", "", rest)
        if rest.startswith(")"):
            return Shape(parts=tuple(parts)), rest[1:]
        part, rest = parse_prefix(rest)
        parts.append(part)


def _tiles(text: str) -> Iterator[tuple[int, ...]]:
    """Yield "(8,128)(2,1)" as numbers; * combines a dimension with the next, and pads nothing."""
    for tile in re.findall(r"\(([^)]*)\)", text):
        yield tuple(1 if t == "*" else int(t) for t in tile.split(","))


def _dtype(name: str) -> str:
    """XLA's name of an element type as MLIR spells it: s32 -> i32, f8e4m3fn -> f8E4M3FN."""
    if name in _NAMES:
        return _NAMES[name]
    if found := _FLOAT8.fullmatch(name):
        return f"f{found[1]}E{found[2]}M{found[3]}{found[4].upper()}"
    if name[0] in _INTEGERS and name[1:].isdigit():
        return _INTEGERS[name[0]] + name[1:]
    return name
