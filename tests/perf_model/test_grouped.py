"""Grouped products: visits of tiles where groups end, whole tiles, and tiles tuned for TPU7x."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.perf_model.jax_programs import spec
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model import stablehlo
from torchtpu.perf_model.costs import grouped
from torchtpu.perf_model.costs.grouped import Grouped, Tile
from torchtpu.perf_model.costs.matmul import gemm_cycles
from torchtpu.perf_model.costs.registry import Cost, rule_for

V5P, V6E, TPU7X = (chips.load(name) for name in ("v5p", "v6e", "tpu7x"))


def of(rows: int, k: int, n: int, groups: int, *, sums: bool = False) -> Grouped:
    return Grouped(
        rows=rows, k=k, n=n, groups=groups, sums=sums, dtype="bf16", itemsize=2, result=2
    )


def ragged(rows: int, k: int, n: int, groups: int, chip: chips.Chip = V6E) -> Cost:
    types = (
        spec(rows, k, dtype=jnp.bfloat16),
        spec(groups, k, n, dtype=jnp.bfloat16),
        spec(groups, dtype=jnp.int32),
    )
    lowered = jax.jit(lax.ragged_dot).trace(*types).lower(lowering_platforms=("tpu",))
    program = stablehlo.read(lowered.compiler_ir("stablehlo"))
    (op,) = (op for op in program.ops if op.opcode == "chlo.ragged_dot")
    return rule_for(op).cost(op, program, chip)


def test_a_border_of_groups_costs_a_tile_of_rows() -> None:
    dense = 2 * 8192 * 512 * 1024
    one, eight = ragged(8192, 512, 1024, 1), ragged(8192, 512, 1024, 8)
    assert one.matmul_flops == eight.matmul_flops == dense
    assert one.mxu_cycles == dense / V6E.flops_per_cycle
    assert eight.mxu_cycles / one.mxu_cycles == (8192 / 512 + 7) / (8192 / 512)
    assert eight.serial_cycles > one.serial_cycles


def test_a_group_without_rows_is_not_visited() -> None:
    assert of(8, 512, 512, 128).visits(8) == of(8, 512, 512, 8).visits(8) == 8


def test_whole_tiles_are_computed_where_nothing_is_tuned() -> None:
    """MaxText's default of 1024 covers 1408 twice: DeepSeek-V2's experts."""
    cost = ragged(294912, 2048, 1408, 64, V5P)
    rows = (294912 // 512 + 63) * 512
    assert cost.mxu_cycles == pytest.approx(gemm_cycles(rows, 2048, 2048, "bf16", V5P))
    assert ragged(4096, 256, 512, 2).mxu_cycles == gemm_cycles(4608, 256, 512, "bf16", V6E)


def test_two_cores_share_the_tiles_along_n() -> None:
    """Seven tiles take as long as eight: DeepSeek-V3's width on v5p."""
    seven, eight = ragged(8192, 2048, 7168, 1, V5P), ragged(8192, 2048, 8192, 1, V5P)
    assert seven.mxu_cycles == eight.mxu_cycles > ragged(8192, 2048, 6144, 1, V5P).mxu_cycles
    assert ragged(8192, 2048, 512, 1, V5P).mxu_cycles == gemm_cycles(8192, 2048, 1024, "bf16", V5P)


# Tiles that tokamax had tuned for TPU7x in December 2025 (GMM and TGMM tables, 166b37de).
PUBLISHED = [
    (of(327680, 2880, 2880, 128), (512, 2944, 1536)),
    (of(262144, 7168, 2048, 256), (256, 7168, 512)),
    (of(262144, 2048, 7168, 256), (128, 2048, 3584)),
    (of(524288, 4096, 1536, 128), (256, 4096, 1536)),
    (of(327680, 2880, 2880, 128, sums=True), (512, 2944, 768)),
    (of(262144, 2048, 7168, 256, sums=True), (256, 2048, 1024)),
    (of(524288, 4096, 1536, 128, sums=True), (512, 4096, 512)),
]


@pytest.mark.parametrize(("product", "tile"), PUBLISHED)
def test_the_tuned_tile_is_about_as_fast_as_the_published_one(product: Grouped, tile: Tile) -> None:
    ours = grouped._seconds(product, grouped._tile(product, TPU7X), TPU7X)
    assert 0.9 < ours / grouped._seconds(product, tile, TPU7X) <= 1


def test_sums_over_rows_read_each_operand_once_per_tile_of_the_other() -> None:
    product, tile = of(4096, 1024, 2048, 4, sums=True), (512, 512, 512)
    read, written = 4096 * (1024 * 4 + 2048 * 2) * 2, 4 * 1024 * 2048 * 2
    assert product.hbm_bytes(tile) == read + written
    whole = replace(product, sums=False)
    assert (
        whole.hbm_bytes((512, 1024, 512)) == (4096 * 1024 * 4 + 4 * 1024 * 2048 + 4096 * 2048) * 2
    )
    assert whole.hbm_bytes((512, 512, 512)) > whole.hbm_bytes((512, 1024, 512))
