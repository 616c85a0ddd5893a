"""How an attention is cut into tiles: what fits the kernels and VMEM, which tiles run, their cost.

A row is a position of the queries, a column one of the keys. A kernel holds a block of one side
and streams the other through VMEM; of what it streams it takes a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LANES = 128  # of a vector register; blocks are multiples of it
# The least VMEM of a TensorCore that Pallas compiles for is 16 MiB (TPU v4; jax/_src/tpu_info.py,
# 2026-11), which is also libtpu's bound for one kernel. StableHLO does not know its generation.
VMEM_BYTES = 16 << 20
_USABLE = 0.7  # of that bound: the rest is the compiler's
# Rows or columns of a block, by the bytes of an element. 512 rows do more FLOPs per byte of k and v
# than the ridge of any chip; float32 takes six passes on the MXU, and its code grows with the tile.
_BLOCK = {2: 512, 4: 256}
_STREAM = 2048  # positions that a grid step streams
# A head of fewer pairs is less work than a grid step takes to start, and XLA's own form of it moves
# few bytes: a choice by arithmetic, unmeasured.
_LEAST_PAIRS = 256 * 256
_MOST_WIDTH = 256


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """[B, H, S, D] queries over [B, K, T, D] keys and [B, K, T, E] values.

    rows: S. columns: T. width: D. value_width: E. itemsize: bytes of an element of q, k and v.
    bias: its four dims, each 1 or full. bias_itemsize: bytes of an element of it. causal: row i
    sees columns 0 to i.
    """

    batch: int
    heads: int
    key_heads: int
    rows: int
    columns: int
    width: int
    value_width: int
    itemsize: int
    causal: bool
    bias: tuple[int, int, int, int] | None = None
    bias_itemsize: int = 0

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.key_heads

    @property
    def pairs(self) -> int:
        """Row and column pairs that are seen, of all batches and heads."""
        rows, columns = self.rows, self.columns
        seen = rows * columns
        if self.causal:
            corner = min(rows, columns)
            seen = corner * (corner + 1) // 2 + (rows - corner) * columns
        return self.batch * self.heads * seen


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Positions: `block` of the side that is held, `stream` of the other, `chunk` of that."""

    held: int
    streamed: int
    block: int
    stream: int
    chunk: int

    @property
    def blocks(self) -> int:
        return -(-self.held // self.block)

    @property
    def streams(self) -> int:
        return -(-self.streamed // self.stream)

    @property
    def chunks(self) -> int:
        """Chunks of a stream."""
        return self.stream // self.chunk

    @property
    def is_ragged(self) -> bool:
        """Whether the last stream holds positions that do not exist."""
        return self.streamed % self.stream != 0


def fits(of: Sizes) -> bool:
    """Whether the kernels compute it, and have enough to do in each of their grid's steps."""
    bias = of.bias is None or of.bias[3] == of.columns
    is_long = min(of.rows, of.columns) >= LANES and of.rows * of.columns >= _LEAST_PAIRS
    return bias and is_long and max(of.width, of.value_width) <= _MOST_WIDTH


def tiling(of: Sizes, *, held: int, streamed: int, tiles: int) -> Tiling:
    """Return the largest blocks whose need of VMEM is in bounds.

    tiles: float32 tiles of block x chunk that are alive at once.
    """
    for block, chunk, stream in _candidates(_BLOCK[of.itemsize]):
        part = _even(streamed, chunk)
        times = min(stream // chunk, -(-streamed // part))
        cut = Tiling(
            held=held, streamed=streamed, block=_even(held, block), stream=part * times, chunk=part
        )
        if _vmem_bytes(of, cut, tiles) <= _USABLE * VMEM_BYTES:
            break
    return cut


def _candidates(most: int) -> Iterator[tuple[int, int, int]]:
    """Yield (block, chunk, stream), the best first; the last fits whatever `fits` lets through."""
    sizes = [n for n in (512, 256, 128) if n <= most]
    for block in sizes:
        for chunk in (n for n in sizes if n <= block):
            for times in (8, 4, 2, 1):
                if chunk * times <= _STREAM:
                    yield block, chunk, chunk * times


def _even(length: int, most: int) -> int:
    """Return the least multiple of LANES that cuts a length into as few parts as `most` does."""
    parts = -(-length // most)
    return -(-length // (parts * LANES)) * LANES


def _lanes(width: int) -> int:
    return -(-width // LANES) * LANES


def _vmem_bytes(of: Sizes, cut: Tiling, tiles: int) -> int:
    """Two buffers of each operand and result, float32 sums, statistics and tiles."""
    wide = _lanes(of.width) + _lanes(of.value_width)
    operands = 2 * of.itemsize * wide * (2 * cut.block + cut.stream)
    sums = 4 * cut.block * (wide + 2 * LANES)
    bias = 0 if of.bias is None else 2 * of.bias_itemsize * cut.block * cut.stream
    return operands + sums + bias + tiles * 4 * cut.block * cut.chunk
