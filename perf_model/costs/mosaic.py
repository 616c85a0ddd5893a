"""Pallas kernels (`tpu_custom_call`): fused attention by its scores, any other by what it says it
costs.
"""

from __future__ import annotations

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.constants import constants
from torchtpu.perf_model.costs.registry import Cost, Kind, rule
from torchtpu.perf_model.program import Graph, Op, TensorType

_ATTENTION = ("attention", "splash", "flash")
_RANK = 3  # of queries, keys and values; positions, scales and statistics may have fewer


@rule("custom_call:tpu_custom_call", kind=Kind.OTHER)
def _mosaic(op: Op, graph: Graph, chip: Chip) -> Cost:
    """FLOPs, transcendentals and bytes of the kernel's own `cost_estimate`.

    Without one there is no number: the kernel is unmodelled.
    """
    name = op.text("kernel_name", "without a name")
    flops = float(op.int("kernel_flops", 0))
    copied = float(op.int("kernel_bytes_accessed", 0))
    if not flops and not copied:
        return Cost(unmodelled=f"Pallas kernel {name} gives no cost_estimate")
    if any(word in name for word in _ATTENTION):
        return _attention(op, graph, chip, flops, copied)
    return Cost(
        matmul_flops=flops,
        mxu_cycles=flops / chip.flops_per_cycle,
        eup_ops=float(op.int("kernel_transcendentals", 0)),
        hbm_bytes=copied,
    )


def _attention(op: Op, graph: Graph, chip: Chip, flops: float, copied: float) -> Cost:
    """FlashAttention-2 (arXiv:2307.08691): products of padded head widths beside the softmax.

    flops: of the row and column pairs that are seen; one transcendental for each of them. Tiles on
    the diagonal compute pairs that nobody sees: `kernel_tile_flops` counts those of all tiles.
    """
    waste = max(1.0, op.int("kernel_tile_flops", 0) / flops) if flops else 1.0
    scores = op.int("kernel_transcendentals", 0) * waste
    operands = [graph.types[v] for v in op.operands if len(graph.types[v].shape) >= _RANK]
    padding = _padding(operands, chip)
    factor = chip.mxu_time_factor(operands[0].dtype) if operands else 1.0
    return Cost(
        matmul_flops=flops,
        mxu_cycles=flops * waste * padding * factor / chip.flops_per_cycle,
        valu_ops=scores * constants().attention_valu_ops,
        eup_ops=scores,
        hbm_bytes=copied,
    )


def _padding(operands: list[TensorType], chip: Chip) -> float:
    """Padded over real width of the heads of query and value, the first and third operand."""
    widths = [t.shape[-1] for t in operands[:3:2]]
    padded = sum(-(-width // chip.mxu_side) * chip.mxu_side for width in widths)
    return padded / sum(widths) if widths else 1.0
