"""The matrix unit: dot_general and convolution as padded GEMMs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.costs.registry import Cost, Kind, rule
from torchtpu.perf_model.costs.tiling import matmul_bytes
from torchtpu.perf_model.fitted import calibration_of
from torchtpu.perf_model.program import Graph, Op, dtype_bits

_VECTOR = 1024  # elements of a vector register: 8 sublanes of 128 lanes
ONE_ROW_HINT = "matmul of one row runs on the vector units; pad the batch to 8 rows"


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _sublanes(dtype: str) -> int:
    """Rows of one vector register: 8 of 32 bits, 16 of 16 bits, 32 of 8 bits."""
    return 8 * max(1, 32 // max(8, min(32, dtype_bits(dtype))))


def gemm_cycles(m: int, k: int, n: int, dtype: str, chip: Chip) -> float:
    """Cycles of [m, k] x [k, n] on all matrix units of a device, in bfloat16 terms.

    Mp * Kp * Np * 2 / FLOP per cycle: K and N padded to the MXU side, M to the sublanes of the
    dtype and to the rows below which loading the weights dominates: a tile of weights has K rows
    to load, at most the side. Either operand may be the stationary one; the better is taken.
    """
    side = chip.mxu_side
    sublanes = _sublanes(dtype)
    loaded = min(side, _round_up(k, sublanes))
    floor_rows = int(calibration_of(chip).weight_load_rows * loaded)
    k_padded = _round_up(k, side)

    def padded(rows: int, columns: int) -> int:
        return max(_round_up(rows, sublanes), floor_rows) * _round_up(columns, side)

    return 2.0 * k_padded * min(padded(m, n), padded(n, m)) / chip.flops_per_cycle


def _precision(op: Op) -> str:
    """The highest precision that the op asks for."""
    found = op.attrs.get("precision", ())
    wanted = " ".join(map(str, found)) if isinstance(found, tuple) else ""
    algorithm = op.text("algorithm").lower()
    if "HIGHEST" in wanted or "bf16_x6" in algorithm or "f32_f32_f32" in algorithm:
        return "HIGHEST"
    return "HIGH" if "HIGH" in wanted.split() or "bf16_x3" in algorithm else "DEFAULT"


def operand_dtype(op: Op, graph: Graph) -> str:
    """The wider dtype of the two operands: it decides the passes of the matrix unit."""
    lhs, rhs = (graph.types[v].dtype for v in op.operands[:2])
    return max(lhs, rhs, key=dtype_bits)


def _complex_factor(dtype: str) -> int:
    return 4 if dtype.startswith("complex") else 1


def _real(dtype: str) -> str:
    return "f32" if dtype.startswith("complex") else dtype


def dot_sizes(op: Op, graph: Graph) -> tuple[int, int, int, int]:
    """(batch, M, K, N) of a dot_general."""
    lhs, rhs = (graph.types[v].shape for v in op.operands[:2])
    batch = math.prod(lhs[d] for d in op.ints("lhs_batch"))
    k = math.prod(lhs[d] for d in op.ints("lhs_contract"))
    m = math.prod(lhs) // max(1, batch * k)
    n = math.prod(rhs) // max(1, batch * k)
    return batch, m, k, n


def time_factor(op: Op, graph: Graph, chip: Chip) -> float:
    """MXU time of the op's dtype and precision relative to bfloat16."""
    return chip.mxu_time_factor(_real(operand_dtype(op, graph)), _precision(op))


def _gemm(batch: int, sizes: tuple[int, int, int], op: Op, graph: Graph, chip: Chip) -> Cost:
    m, k, n = sizes
    dtype = operand_dtype(op, graph)
    passes = _complex_factor(dtype)
    flops = 2.0 * batch * m * k * n * passes
    if not flops:
        return Cost()
    factor = time_factor(op, graph, chip) * passes
    result = dtype_bits(graph.types[op.results[0]].dtype) / 8
    return Cost(
        matmul_flops=flops,
        mxu_cycles=batch * gemm_cycles(m, k, n, _real(dtype), chip) * factor,
        hbm_bytes=batch * _reread(sizes, dtype_bits(dtype) / 8, result, chip),
    )


def _reread(sizes: tuple[int, int, int], itemsize: float, result: float, chip: Chip) -> float:
    """HBM bytes of a matmul too large for VMEM; 0 where every operand is read once."""
    m, k, n = sizes
    once = (m * k + k * n) * itemsize + m * n * result
    found = matmul_bytes(m, k, n, itemsize, result, chip)
    return found if found > once else 0.0


@rule("dot_general", kind=Kind.MATMUL)
def _dot_general(op: Op, graph: Graph, chip: Chip) -> Cost:
    batch, m, k, n = dot_sizes(op, graph)
    if m == 1 and n == 1:
        return Cost(matmul_flops=2.0 * batch * k, valu_ops=2.0 * batch * k)
    if batch == min(m, n) == 1 and chip.value("mxu.vector_rows") >= 1:
        return _one_row(k, max(m, n), chip)
    return _gemm(batch, (m, k, n), op, graph, chip)


def _one_row(k: int, n: int, chip: Chip) -> Cost:
    """A row (or column) times a matrix, which the compiler multiplies on the vector units."""
    weights = float(k * n)
    cycles = calibration_of(chip).vector_dot_cycles / chip.cores_per_device
    return Cost(
        matmul_flops=2.0 * weights, serial_cycles=weights / _VECTOR * cycles, hint=ONE_ROW_HINT
    )


@rule("dot", kind=Kind.MATMUL)
def _dot(op: Op, graph: Graph, chip: Chip) -> Cost:
    lhs, rhs = (graph.types[v].shape for v in op.operands[:2])
    k = lhs[-1]
    return _gemm(1, (math.prod(lhs) // max(1, k), k, math.prod(rhs) // max(1, k)), op, graph, chip)


def valid_taps(outputs: int, inputs: int, window: Sequence[int]) -> int:
    """(output, kernel) pairs of one spatial dimension that meet a real input element.

    window: kernel size, stride, low padding, input dilation, kernel dilation. Padding and the holes
    of a dilated input need no arithmetic.
    """
    kernel, stride, low, lhs_dilation, rhs_dilation = window
    taps = 0
    span = (inputs - 1) * lhs_dilation
    for tap in range(kernel):
        offset = tap * rhs_dilation - low
        if lhs_dilation == 1:
            first = max(0, -(offset // stride))
            last = min(outputs - 1, (span - offset) // stride)
            taps += max(0, last - first + 1)
        else:
            period = lhs_dilation // math.gcd(lhs_dilation, stride)
            hits = sum(
                (o * stride + offset) % lhs_dilation == 0 for o in range(min(period, outputs))
            )
            taps += hits * outputs // period if outputs >= period else hits
    return taps


def _windows(op: Op, graph: Graph) -> int:
    """Product over the spatial dimensions of the valid taps."""
    lhs, rhs = (graph.types[v].shape for v in op.operands[:2])
    out = graph.types[op.results[0]].shape
    spatial = op.ints("lhs_spatial")
    count = len(spatial)
    ones = (1,) * count
    strides = op.ints("window_strides") or ones
    lhs_dilation = op.ints("lhs_dilation") or ones
    rhs_dilation = op.ints("rhs_dilation") or ones
    padding = op.ints("padding") or (0,) * (2 * count)
    total = 1
    for i in range(count):
        window = (
            rhs[op.ints("rhs_spatial")[i]],
            strides[i],
            padding[2 * i],
            lhs_dilation[i],
            rhs_dilation[i],
        )
        total *= valid_taps(out[op.ints("out_spatial")[i]], lhs[spatial[i]], window)
    return total


@rule("convolution", "dynamic_conv", kind=Kind.MATMUL)
def _convolution(op: Op, graph: Graph, chip: Chip) -> Cost:
    """An implicit GEMM per group: M = batch x output positions, K = input features x valid taps, N
    = output features.

    A depthwise convolution may also run on the vector ALUs; the cheaper is taken.
    """
    rhs = graph.types[op.operands[1]].shape
    out = graph.types[op.results[0]].shape
    groups = op.int("feature_group_count", 1) * op.int("batch_group_count", 1)
    features_in = rhs[op.int("rhs_in", 1)]
    features_out = out[op.int("out_feature", 1)] // groups
    positions = math.prod(out[d] for d in op.ints("out_spatial"))
    batch = math.prod(out) // max(1, positions * out[op.int("out_feature", 1)])
    taps = _windows(op, graph) / max(1, positions)
    k = max(1, round(features_in * taps))
    padded = _gemm(groups, (batch * positions, k, features_out), op, graph, chip)
    flops = 2.0 * groups * batch * positions * features_in * taps * features_out
    on_mxu = Cost(matmul_flops=flops, mxu_cycles=padded.mxu_cycles)  # windows overlap in VMEM
    if groups == 1:
        return on_mxu
    vector_cycles = flops / chip.valu_ops_per_cycle
    return (
        on_mxu if on_mxu.mxu_cycles <= vector_cycles else Cost(matmul_flops=flops, valu_ops=flops)
    )
