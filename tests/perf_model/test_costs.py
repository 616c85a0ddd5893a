"""Cost rules: model FLOPs, padded cycles, dtype factors, vector operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

from tests.perf_model.jax_programs import graph, spec
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model import stablehlo
from torchtpu.perf_model.costs.matmul import gemm_cycles, valid_taps
from torchtpu.perf_model.costs.registry import Cost, Kind, rule, rule_for, rules
from torchtpu.perf_model.fitted import calibration_of
from torchtpu.perf_model.kernel_cost import program_cost
from torchtpu.perf_model.program import AttrValue, Graph, GraphBuilder, Op
from torchtpu.perf_model.validation import programs

V5E, V6E, TPU7X = (chips.load(name) for name in ("v5e", "v6e", "tpu7x"))


def cost_of(opcode: str, program: Graph, chip: chips.Chip = V6E) -> Cost:
    (op,) = (op for op in program.ops if op.opcode == opcode)
    return rule_for(op).cost(op, program, chip)


def test_aligned_gemm_takes_flops_over_flops_per_cycle() -> None:
    assert gemm_cycles(4096, 4096, 4096, "bf16", V6E) == 2 * 4096**3 / 524288
    assert gemm_cycles(4096, 4096, 4096, "bf16", V5E) == 2 * 4096**3 / 131072


def test_a_tile_of_weights_loads_as_long_as_it_has_rows() -> None:
    whole = gemm_cycles(8, 256, 4096, "bf16", V6E)
    assert gemm_cycles(8, 128, 4096, "bf16", V6E) == whole / 2
    assert gemm_cycles(8, 512, 4096, "bf16", V6E) == whole * 2
    many = gemm_cycles(4096, 256, 4096, "bf16", V6E)  # rows hide the loading
    assert gemm_cycles(4096, 128, 4096, "bf16", V6E) == many


@pytest.mark.parametrize(("chip", "side"), [(V5E, 128), (V6E, 256)])
def test_k_and_n_are_padded_to_the_matrix_unit(chip: chips.Chip, side: int) -> None:
    full = gemm_cycles(4096, side, 4096, "bf16", chip)
    assert gemm_cycles(4096, 1, 4096, "bf16", chip) == full
    assert gemm_cycles(4096, side + 1, 4096, "bf16", chip) == 2 * full


def test_head_dimension_64_fills_half_of_128_and_a_quarter_of_256() -> None:
    for chip, share in ((V5E, 2), (V6E, 4)):
        ideal = 2 * 4096 * 64 * 4096 / chip.flops_per_cycle
        assert gemm_cycles(4096, 64, 4096, "bf16", chip) == share * ideal


def test_few_rows_cost_as_much_as_loading_the_weights() -> None:
    assert gemm_cycles(1, 4096, 4096, "bf16", V6E) == gemm_cycles(128, 4096, 4096, "bf16", V6E)
    assert gemm_cycles(4096, 4096, 1, "bf16", V6E) == gemm_cycles(1, 4096, 4096, "bf16", V6E)


def test_batched_dot_counts_every_batch() -> None:
    program = graph(lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), spec(7, 64, 32), spec(7, 32, 16))
    assert cost_of("dot_general", program).matmul_flops == 2 * 7 * 64 * 32 * 16


@pytest.mark.parametrize(
    ("dtype", "chip", "low", "high"),
    [
        (jnp.int8, V6E, 0.5, 0.7),
        (jnp.int8, TPU7X, 1.1, 1.3),
        (jnp.float8_e5m2, V5E, 0.4, 0.5),
        (jnp.float8_e4m3fn, V5E, 0.8, 1.0),
        (jnp.float32, V6E, 1.3, 1.8),
    ],
)
def test_dtype_changes_the_cycles(dtype: Any, chip: chips.Chip, low: float, high: float) -> None:
    def program(kind: Any) -> Graph:
        return graph(lambda a, b: a @ b, *[spec(1024, 1024, dtype=kind)] * 2)

    ratio = cost_of("dot_general", program(dtype), chip).mxu_cycles
    ratio /= cost_of("dot_general", program(jnp.bfloat16), chip).mxu_cycles
    assert low < ratio < high


def test_precision_of_float32_dots() -> None:
    cycles = [
        cost_of(
            "dot_general",
            graph(lambda a, b, p=p: jnp.dot(a, b, precision=p), *[spec(512, 512)] * 2),
        ).mxu_cycles
        for p in ("default", "high", "highest")
    ]
    assert cycles == sorted(cycles)
    assert cycles[2] > 3 * cycles[0]


def test_convolution_is_an_implicit_gemm_without_the_padding() -> None:
    def convolve(padding: str) -> Cost:
        def run(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(x, w, (1, 1), padding)

        return cost_of("convolution", graph(run, spec(2, 16, 10, 10), spec(32, 16, 3, 3)))

    assert convolve("VALID").matmul_flops == 2 * 2 * 8 * 8 * 16 * 9 * 32
    assert convolve("SAME").matmul_flops == 2 * 2 * 28 * 28 * 16 * 32  # 28 = 3 x 10 taps less 2


def test_gradients_of_a_convolution_cost_what_it_costs() -> None:
    def loss(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (2, 2), "SAME").sum()

    types = spec(4, 8, 16, 16), spec(16, 8, 3, 3)
    forward = graph(loss, *types)
    backward = graph(jax.grad(loss, argnums=(0, 1)), *types)
    costs = [rule_for(o).cost(o, backward, V6E) for o in backward.ops if o.opcode == "convolution"]
    expected = cost_of("convolution", forward).matmul_flops
    assert sum(c.matmul_flops for c in costs) == pytest.approx(2 * expected, rel=0.1)


@pytest.mark.parametrize(
    ("outputs", "inputs", "window"),
    [
        (8, 10, (3, 1, 0, 1, 1)),
        (10, 10, (3, 1, 1, 1, 1)),
        (5, 10, (3, 2, 1, 1, 1)),
        (3, 10, (8, 1, 0, 1, 1)),
        (6, 10, (3, 1, 0, 1, 2)),
        (19, 10, (3, 1, 1, 2, 1)),
        (1, 1, (1, 1, 0, 1, 1)),
    ],
)
def test_valid_taps_agree_with_counting(outputs: int, inputs: int, window: tuple[int, ...]) -> None:
    kernel, stride, low, lhs_dilation, rhs_dilation = window
    places = {i * lhs_dilation for i in range(inputs)}
    counted = sum(
        o * stride + k * rhs_dilation - low in places for o in range(outputs) for k in range(kernel)
    )
    assert valid_taps(outputs, inputs, window) == pytest.approx(counted, rel=0.06)


def test_depthwise_convolution_does_not_pay_for_a_matrix_unit_per_channel() -> None:
    def run(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=64)

    cost = cost_of("convolution", graph(run, spec(2, 64, 32, 32), spec(64, 1, 3, 3)))
    assert cost.mxu_cycles == 0
    assert cost.valu_ops == cost.matmul_flops > 0


def test_transcendentals_use_the_eup() -> None:
    assert cost_of("exponential", graph(jnp.exp, spec(1000))).eup_ops == 1000
    assert cost_of("add", graph(lambda x: x + x, spec(1000))) == Cost(valu_ops=1000)
    sine = cost_of("sine", graph(jnp.sin, spec(1000)))
    assert sine.valu_ops > 100 * 1000


def test_sort_grows_faster_than_linear() -> None:
    small, large = (cost_of("sort", graph(jnp.sort, spec(8, n))).valu_ops for n in (128, 1024))
    assert large > 8 * 1.5 * small


def test_scatter_pays_per_row() -> None:
    def scatter(rows: int) -> Cost:
        types = spec(999, 8), spec(rows, dtype=jnp.int32), spec(rows, 8)
        return cost_of("scatter", graph(lambda x, i, u: x.at[i].add(u), *types))

    assert scatter(64).scalar_cycles == 2 * scatter(32).scalar_cycles > 0


def test_an_opcode_without_a_rule_is_reported() -> None:
    op = Op(opcode="mystery")
    assert (
        "mystery"
        in rule_for(op).cost(op, Graph(types=(), inputs=(), outputs=(), ops=()), V6E).unmodelled
    )
    assert rule_for(op).kind is Kind.OTHER


def test_a_second_rule_is_an_error() -> None:
    rules()
    with pytest.raises(ValueError, match="add: a second cost rule"):
        rule("add", kind=Kind.LOOP)(lambda op, graph, chip: Cost())


def test_float16_pays_for_conversion_and_bfloat16_does_not() -> None:
    def time_s(dtype: str) -> float:
        return program_cost(programs.matmul(2048, 2048, 2048, dtype), chips.load("v4")).time_s

    elements = 3 * 2048**2
    v4 = chips.load("v4")
    convert_s = elements * calibration_of(v4).f16_convert_ops / v4.valu_ops_per_cycle / v4.clock_hz
    assert time_s("f16") > time_s("bf16") + convert_s


def mosaic(width: int, said: Mapping[str, int], name: str = "flash_attention") -> Graph:
    """A Pallas kernel over queries, keys and values [1, 8, 1024, width]."""
    builder = GraphBuilder()
    operands = tuple(builder.input((1, 8, 1024, width), "bf16") for _ in range(3))
    result = builder.value((1, 8, 1024, width), "bf16")
    attrs: dict[str, AttrValue] = {"call_target_name": "tpu_custom_call", "kernel_name": name}
    builder.ops.append(
        Op(opcode="custom_call", operands=operands, results=(result,), attrs={**attrs, **said})
    )
    return builder.build((result,))


SCORES = 8 * 1024 * 1024 // 2


def test_a_fused_attention_costs_padded_heads_softmax_and_its_own_bytes() -> None:
    def cost(width: int, chip: chips.Chip) -> Cost:
        said = {"kernel_flops": 4 * width * SCORES, "kernel_transcendentals": SCORES}
        return cost_of("custom_call", mosaic(width, said | {"kernel_bytes_accessed": 999}), chip)

    for chip, share in ((V5E, 2), (V6E, 4)):  # of the matrix unit is filled by heads of 64
        assert cost(64, chip).mxu_cycles == share * 4 * 64 * SCORES / chip.flops_per_cycle
    assert cost(256, V6E).mxu_cycles == 4 * 256 * SCORES / V6E.flops_per_cycle
    softmax = cost(128, V6E)
    assert softmax.eup_ops == SCORES
    assert softmax.valu_ops > 3 * SCORES
    assert softmax.hbm_bytes == 999


def test_masked_parts_of_tiles_take_time_but_are_no_flops() -> None:
    said = {"kernel_flops": 4 * 128 * SCORES, "kernel_transcendentals": SCORES}
    exact = cost_of("custom_call", mosaic(128, said))
    tiled = cost_of("custom_call", mosaic(128, said | {"kernel_tile_flops": 6 * 128 * SCORES}))
    assert tiled.matmul_flops == exact.matmul_flops
    assert tiled.mxu_cycles == pytest.approx(1.5 * exact.mxu_cycles)
    assert tiled.eup_ops == pytest.approx(1.5 * exact.eup_ops)


def test_other_pallas_kernels_cost_what_they_say_or_are_unmodelled() -> None:
    estimate = {"kernel_flops": 1000, "kernel_bytes_accessed": 10}
    said = cost_of("custom_call", mosaic(128, estimate, "mine"))
    assert said.mxu_cycles == 1000 / V6E.flops_per_cycle
    silent = cost_of("custom_call", mosaic(128, {}, "mine"))
    assert "mine gives no cost_estimate" in silent.unmodelled


def test_the_cost_estimate_of_a_pallas_kernel_is_read() -> None:
    def double(x: Any) -> Any:
        return pl.pallas_call(
            lambda source, out: out.__setitem__(..., source[...] * 2),
            out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
            name="mine",
            cost_estimate=pl.CostEstimate(flops=12, transcendentals=3, bytes_accessed=45),
            metadata={"tile_flops": "20"},
        )(x)

    lowered = jax.jit(double).trace(spec(8, 128)).lower(lowering_platforms=("tpu",))
    program = stablehlo.read(lowered.compiler_ir("stablehlo"))
    (op,) = (o for o in program.ops if o.opcode == "custom_call")
    names = ("flops", "transcendentals", "bytes_accessed", "tile_flops")
    assert [op.int(f"kernel_{name}", 0) for name in names] == [12, 3, 45, 20]
    assert op.text("kernel_name") == "mine"


def taken(dtype: Any, rows: int = 4096, width: int = 2048) -> Graph:
    types = (spec(rows, width, dtype=dtype), spec(rows, dtype=jnp.int32))
    return graph(lambda x, i: x.at[i].get(mode="promise_in_bounds"), *types)


@pytest.mark.parametrize(("name", "bundles"), [("v5e", 3051), ("v5p", 3058), ("v6e", 2373)])
def test_a_gathered_row_is_laid_as_the_compiler_schedules_it(name: str, bundles: int) -> None:
    """Bundles of libtpu 0.0.42.1 for 128 rows of 2048 bfloat16, waits for their DMAs apart."""
    chip = chips.load(name)
    cost = cost_of("gather", taken(jnp.bfloat16), chip)
    cycles = (cost.scalar_cycles + cost.serial_cycles) * chip.cores_per_device
    assert cycles / (4096 / 128 * bundles) == pytest.approx(1, abs=0.1)


def test_rows_of_16_bits_are_read_with_their_neighbours() -> None:
    once = 4096 * 2048
    for chip in (V5E, TPU7X):
        assert cost_of("gather", taken(jnp.bfloat16), chip).hbm_bytes == once * (2 * 2 + 2)
    assert cost_of("gather", taken(jnp.float32), V5E).hbm_bytes == once * (4 + 4)
    assert cost_of("gather", taken(jnp.bfloat16), TPU7X).serial_cycles == 0  # on SparseCores


def test_scattered_rows_cost_their_width() -> None:
    def cost(width: int) -> Cost:
        types = (spec(128, width), spec(512, dtype=jnp.int32), spec(512, width))
        return cost_of("scatter", graph(lambda x, i, u: x.at[i].add(u), *types), TPU7X)

    assert cost(2880).scalar_cycles / 512 == pytest.approx(25.0, abs=0.5)
    assert cost(1).scalar_cycles == cost(128).scalar_cycles
