"""Collectives of optimized HLO, priced by the network model: libtpu gives them no cycles."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np

from torchtpu.perf_model.hlo.reader import Instruction
from torchtpu.perf_model.kernel_cost import KernelCost
from torchtpu.perf_model.network.collective_ops import Exchange
from torchtpu.perf_model.network.topology import Topology

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTS = re.compile(r"\{([\d,]+)\}")
_WITH_OPERANDS = frozenset({"all-gather", "collective-permute", "all-to-all"})
_OF_SHARDS = frozenset({"reduce_scatter", "all_to_all"})  # whose result is a part of the whole
_KINDS = {"ragged-all-to-all": "all_to_all", "collective-broadcast": "all_gather"}


def pricer(topology: Topology) -> Callable[[Instruction], KernelCost]:
    """Return what prices a collective (or its start) on a topology."""

    def price(instruction: Instruction) -> KernelCost:
        made = exchange(instruction, topology.devices).cost(topology)
        return KernelCost(time_s=made.time_s, by_bound={"network": made.time_s}, kernels=1)

    return price


def exchange(instruction: Instruction, devices: int) -> Exchange:
    """Return what a collective exchanges: dense bytes, and the group that device 0 is in."""
    kind = instruction.opcode.removesuffix("-start")
    shape, is_start = instruction.shape, instruction.opcode.endswith("-start")
    if is_start and len(shape.parts) > 1 and kind in _WITH_OPERANDS:
        shape = shape.parts[1]  # of (operands, results, contexts)
    result = sum(array.type.size_bytes for array in shape.arrays)
    name = _KINDS.get(kind, kind.replace("-", "_"))
    if name == "collective_permute":
        pairs = _LISTS.findall(instruction.attributes.get("source_target_pairs", ""))
        flat = itertools.chain.from_iterable(map(int, pair.split(",")) for pair in pairs)
        return Exchange(kind=name, size_bytes=result, group=tuple(flat))
    found = groups(instruction.replica_groups, devices)
    group = next((g for g in found if 0 in g), found[0])
    whole = result * (len(group) if name in _OF_SHARDS else 1)
    return Exchange(kind=name, size_bytes=whole, group=group)


def groups(text: str, devices: int) -> list[tuple[int, ...]]:
    """Read replica groups: `{{0,1},{2,3}}`, `[2,2]<=[4]`, `[2,2]<=[2,2]T(1,0)`; {} is all."""
    if found := _IOTA.match(text):
        shape, order, turned = (tuple(map(int, g.split(","))) if g else () for g in found.groups())
        ids = np.arange(int(np.prod(order))).reshape(order)
        ids = ids.transpose(turned) if turned else ids
        return [tuple(map(int, row)) for row in ids.reshape(shape)]
    listed = [tuple(map(int, g.split(","))) for g in _LISTS.findall(text)]
    return listed or [tuple(range(devices))]
