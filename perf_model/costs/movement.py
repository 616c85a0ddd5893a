"""Ops that move or rename data: what they cost is memory traffic, plus the cross-lane unit for a
transpose.
"""

from __future__ import annotations

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.costs.registry import FREE, Cost, Kind, rule
from torchtpu.perf_model.program import Graph, Op


@rule("reshape", "optimization_barrier", "dynamic_reshape", kind=Kind.ALIAS)
@rule("custom_call:Sharding", "custom_call:annotate_device_placement", kind=Kind.ALIAS)
@rule("custom_call:SPMDFullToShardShape", "custom_call:SPMDShardToFullShape", kind=Kind.ALIAS)
@rule("sdy.sharding_constraint", "create_token", "after_all", "get_tuple_element", kind=Kind.ALIAS)
def _alias(_op: Op, _graph: Graph, _chip: Chip) -> Cost:
    return FREE


@rule("constant", "iota", "dynamic_iota", "broadcast_in_dim", "broadcast", kind=Kind.VIRTUAL)
def _virtual(_op: Op, _graph: Graph, _chip: Chip) -> Cost:
    return FREE


@rule("slice", "dynamic_slice", "pad", "dynamic_pad", "concatenate", "reverse", kind=Kind.LOOP)
def _copy(op: Op, graph: Graph, _chip: Chip) -> Cost:
    """One operation per element: the select or rotate that places it."""
    return Cost(valu_ops=graph.types[op.results[0]].elements)


@rule("transpose", kind=Kind.LOOP)
def _transpose(op: Op, graph: Graph, _chip: Chip) -> Cost:
    """The cross-lane unit turns elements only where the minor-most dimension changes."""
    permutation = op.ints("permutation")
    elements = graph.types[op.results[0]].elements
    if not permutation or permutation[-1] == len(permutation) - 1:
        return Cost(valu_ops=elements)
    return Cost(xlu_ops=elements)


@rule("dynamic_update_slice", kind=Kind.UPDATE)
def _update(op: Op, graph: Graph, _chip: Chip) -> Cost:
    return Cost(valu_ops=graph.types[op.operands[1]].elements)
