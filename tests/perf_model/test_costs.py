"""Cost rules: model FLOPs, padded cycles, dtype factors, vector operations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.perf_model.jax_programs import graph, spec
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.costs.matmul import gemm_cycles, valid_taps
from torchtpu.perf_model.costs.registry import Cost, Kind, rule, rule_for, rules
from torchtpu.perf_model.program import Graph, Op

V5E, V6E, TPU7X = (chips.load(name) for name in ("v5e", "v6e", "tpu7x"))


def cost_of(opcode: str, program: Graph, chip: chips.Chip = V6E) -> Cost:
    (op,) = (op for op in program.ops if op.opcode == opcode)
    return rule_for(op).cost(op, program, chip)


def test_aligned_gemm_takes_flops_over_flops_per_cycle() -> None:
    assert gemm_cycles(4096, 4096, 4096, "bf16", V6E) == 2 * 4096**3 / 524288
    assert gemm_cycles(4096, 4096, 4096, "bf16", V5E) == 2 * 4096**3 / 131072


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

    assert scatter(64).serial_cycles == 2 * scatter(32).serial_cycles > 0


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
