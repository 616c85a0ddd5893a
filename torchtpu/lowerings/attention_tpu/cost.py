"""What a call costs, as its custom call says it: work of the pairs seen, bytes that are copied.

In StableHLO a call is `stablehlo.custom_call @tpu_custom_call` with three attributes of interest.
`kernel_name` is a string, one of the NAMEs of forward.py and backward.py. `backend_config` is a
string of JSON: `custom_call_config.cost_estimate` has the integers `flops`, `transcendentals` and
`bytes_accessed` of the whole call, as `Cost` says. `mhlo.frontend_attributes` is a dictionary whose
string `kernel_metadata` is JSON of strings, `metadata` below: `tile_flops`, `steps` (of the grid),
and `block`, `chunk` and `stream` (positions; sizes.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchtpu.lowerings.attention_tpu.sizes import Sizes, Tiling


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The work of one call.

    flops, transcendentals: of the row and column pairs that are seen, and no others.
    bytes_accessed: what the copies between HBM and VMEM move, a stream as often as it is read.
    tile_flops: of all of the tiles that are computed, so with the pairs that masks hide in them.
    """

    flops: int
    transcendentals: int
    bytes_accessed: int
    tile_flops: int


def metadata(cost: Cost, cut: Tiling, grid: tuple[int, ...]) -> dict[str, str]:
    """Return what stands beside the cost: how it is cut, in how many steps, and tile_flops."""
    about = {
        "block": cut.block,
        "chunk": cut.chunk,
        "steps": math.prod(grid),
        "stream": cut.stream,
        "tile_flops": cost.tile_flops,
    }
    return {name: str(value) for name, value in about.items()}


def over_columns(of: Sizes, cut: Tiling, *, products: int, held: int) -> Cost:
    """Cost of a kernel that holds rows.

    products: sum of the contracted or free width of its products. held: bytes of a row that it
    reads and writes.
    """
    heads = of.batch * of.heads
    streams, tiles = _seen_by_rows(of, cut)
    rounds = of.batch * of.key_heads if cut.streams == 1 else heads * streams
    size = min(cut.stream, of.columns)
    streamed = rounds * size * (of.width + of.value_width) * of.itemsize
    own = heads * of.rows * held
    bias = 0 if of.bias is None else heads * streams * size * min(cut.block, of.bias[2])
    return _cost(of, cut, products, streamed + own + bias * of.bias_itemsize, heads * tiles)


def over_rows(of: Sizes, cut: Tiling) -> Cost:
    """Cost of the kernel that holds columns: four products; it reads and writes k and v."""
    heads = of.batch * of.heads
    streams, tiles = _seen_by_columns(of, cut)
    rounds = heads if cut.streams == 1 and of.group == 1 else heads * streams
    size = min(cut.stream, of.rows)
    wide = of.width + of.value_width
    streamed = rounds * size * (wide * of.itemsize + 8)  # and two float32 statistics
    own = of.batch * of.key_heads * of.columns * 2 * wide * of.itemsize
    bias = 0 if of.bias is None else heads * streams * cut.block * min(size, of.bias[2])
    return _cost(of, cut, 2 * wide, streamed + own + bias * of.bias_itemsize, heads * tiles)


def _cost(of: Sizes, cut: Tiling, products: int, copied: int, tiles: int) -> Cost:
    return Cost(
        flops=2 * of.pairs * products,
        transcendentals=of.pairs,
        bytes_accessed=copied,
        tile_flops=2 * tiles * cut.block * cut.chunk * products,
    )


def _seen_by_rows(of: Sizes, cut: Tiling) -> tuple[int, int]:
    """Streams and chunks that the blocks of rows of one head take, in all."""
    ends = [
        min((block + 1) * cut.block, of.columns) if of.causal else of.columns
        for block in range(cut.blocks)
    ]
    return sum(-(-n // cut.stream) for n in ends), sum(-(-n // cut.chunk) for n in ends)


def _seen_by_columns(of: Sizes, cut: Tiling) -> tuple[int, int]:
    """Streams and chunks that the blocks of columns take of one query head, in all."""
    firsts = [min(block * cut.block, of.rows) if of.causal else 0 for block in range(cut.blocks)]
    streams = sum(max(cut.streams - first // cut.stream, 1) for first in firsts)
    chunks = -(-of.rows // cut.chunk)
    return streams, sum(chunks - min(first // cut.chunk, chunks) for first in firsts)
