"""Closed-form time of a collective on a torus of TPUs: bandwidth, latency and launch.

Bandwidth terms follow "How to Scale Your Model", sharding.md: all-gather and reduce-scatter of V
bytes over n wrapped axes take V / (n W), all-reduce twice that, all-to-all V / (4 W) on a ring,
with W twice the one-way rate of a link; a line has half of a ring's bandwidth.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.network.axis_times import (
    chain_s,
    exchange_crossings,
    line_exchange_s,
    ring_exchange_s,
    step_links,
)
from torchtpu.perf_model.network.colours import Colour, plan, ring_link_bytes, used_spans
from torchtpu.perf_model.network.footprint import AxisSpan, Footprint, Group, footprint, siblings
from torchtpu.perf_model.network.rates import Rates, rates
from torchtpu.perf_model.network.routes import traffic, twisted_distances
from torchtpu.perf_model.network.topology import Topology

BARRIER_BYTES = 4


class CollectiveError(ValueError):
    """A collective that cannot be costed; the message says what was expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCost:
    """What one collective costs while all groups of its form run it at the same time.

    time_s: from start to end, launch included; latency_s: the part that does not depend on size;
    busiest_link_bytes: over the busiest directed ICI link of a chip (0 without ICI); dcn_bytes:
    what a device sends to other slices; fabric: the slowest network used ("ici", "dcn", "on_chip",
    "none"); algorithm: in words.
    """

    kind: str
    time_s: float
    latency_s: float
    busiest_link_bytes: float
    dcn_bytes: float
    algorithm: str
    fabric: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """Time of one stage of a collective, without launch."""

    time_s: float = 0.0
    latency_s: float = 0.0
    link_bytes: float = 0.0
    dcn_bytes: float = 0.0

    def then(self, other: _Part) -> _Part:
        return _Part(
            time_s=self.time_s + other.time_s,
            latency_s=self.latency_s + other.latency_s,
            link_bytes=self.link_bytes + other.link_bytes,
            dcn_bytes=self.dcn_bytes + other.dcn_bytes,
        )


_Rule = Callable[[float, Footprint, Rates], _Part]
_NOTHING = _Part()


def collective_cost(
    kind: str, size_bytes: float, group: Sequence[int], topology: Topology, chip: Chip | None = None
) -> CollectiveCost:
    """The cost of one collective of `size_bytes`, the full (unsharded) array, over device numbers.

    kind: one of KINDS. A collective_permute shifts along the group, each member sending its shard
    to the next; send_recv sends the whole array from the first to the second member.
    Raises CollectiveError, TopologyError, IncompleteChip.
    """
    if kind not in KINDS:
        raise CollectiveError(f"[{kind}] unknown collective, expected one of {', '.join(KINDS)}")
    if not 0 <= size_bytes < math.inf:
        raise CollectiveError(f"[{kind}] expected a size of at least 0 bytes, got {size_bytes}")
    members = tuple(group)
    known = rates(chip or topology.chip)
    shape = footprint(members, topology)
    if not shape.tiles:
        own = known.link_bytes_per_s / shape.cores
        known = dataclasses.replace(known, device_link_bytes_per_s=own)
    if shape.size == 1:
        return _cost(kind, _NOTHING, "one device, nothing to do", shape, launch_s=0.0)
    if kind in _POINT_TO_POINT:
        part = _point_to_point(kind, size_bytes, members, topology, known)
        return _cost(kind, part, "dimension-ordered routes", shape, launch_s=known.launch_s)
    if topology.twisted and kind == "all_to_all" and shape.size == topology.devices_per_slice:
        part = _twisted_all_to_all(size_bytes, topology, known)
    elif not shape.regular:
        part = _irregular(kind, size_bytes, members, topology, known)
    else:
        part = _RULES[kind](size_bytes, shape, known)
    return _cost(kind, part, _algorithm(kind, shape), shape, launch_s=known.launch_s)


def _cost(
    kind: str, part: _Part, algorithm: str, shape: Footprint, *, launch_s: float
) -> CollectiveCost:
    return CollectiveCost(
        kind=kind,
        time_s=part.time_s + launch_s,
        latency_s=part.latency_s + launch_s,
        busiest_link_bytes=part.link_bytes,
        dcn_bytes=part.dcn_bytes,
        algorithm=algorithm,
        fabric=shape.fabric,
    )


def _algorithm(kind: str, shape: Footprint) -> str:
    if not shape.regular:
        return f"ring through {shape}"
    name = {"broadcast": "masked all-reduce"}.get(kind, kind.replace("_", "-"))
    used = used_spans(kind, shape.spans)
    detail = ", one ring through the box" if used != shape.spans else ""
    if len(used) > 1:
        detail = f", {len(plan(used))} colours"
    return f"{name} over {shape}{detail}"


def _gather_ici(size_bytes: float, spans: tuple[AxisSpan, ...], known: Rates) -> _Part:
    """All-gather (or, backwards, reduce-scatter) of an array over the axes of one slice.

    In every phase each colour has an axis for itself; a phase ends with its slowest colour.
    """
    if not spans:
        return _NOTHING
    phase_s, latency_s = [0.0] * len(spans), [0.0] * len(spans)
    axis_bytes = [0.0] * len(spans)
    for colour in plan(spans):
        for phase, (position, piece) in enumerate(_pieces(size_bytes, spans, colour)):
            span = spans[position]
            rate, hop = known.device_link_bytes_per_s, known.hop_latency_s
            seconds = chain_s(span, piece / rate, hop, known.chunks)
            phase_s[phase] = max(phase_s[phase], seconds)
            latency_s[phase] = max(latency_s[phase], sum(step_links(span)) * span.stride * hop)
            axis_bytes[position] += ring_link_bytes(span, piece) * span.sharing
    share = known.link_bytes_per_s / known.device_link_bytes_per_s
    busiest = max(axis_bytes) * share
    return _Part(time_s=sum(phase_s), latency_s=sum(latency_s), link_bytes=busiest)


def _pieces(
    size_bytes: float, spans: tuple[AxisSpan, ...], colour: Colour
) -> list[tuple[int, float]]:
    """(position of the axis, bytes of a member's piece) in the order of an all-gather."""
    piece = size_bytes * colour.share / math.prod(span.count for span in spans)
    found = []
    for position in colour.order:
        found.append((position, piece))
        piece *= spans[position].count
    return found


def _gather_cores(size_bytes: float, shape: Footprint, known: Rates) -> _Part:
    """Exchange between the cores of a chip: each sends its part of the array to the other."""
    if shape.cores == 1:
        return _NOTHING
    return _Part(time_s=size_bytes / shape.cores / known.on_chip_bytes_per_s)


def _gather_slice(kind: str, size_bytes: float, shape: Footprint, known: Rates) -> _Part:
    """All-gather within a slice: over the torus first, then between the cores of a chip."""
    spans = used_spans(kind, shape.spans)
    over_torus = _gather_ici(size_bytes / shape.cores, spans, known)
    return over_torus.then(_gather_cores(size_bytes, shape, known))


def _dcn(sent_bytes: float, exchanges: int, shape: Footprint, known: Rates) -> _Part:
    """`exchanges` direct exchanges between slices in which a device sends `sent_bytes` in all."""
    if shape.slices == 1:
        return _NOTHING
    latency = exchanges * known.dcn_latency_s
    seconds = sent_bytes / known.nic_bytes_per_s + latency
    return _Part(time_s=seconds, latency_s=latency, dcn_bytes=sent_bytes)


def _all_gather(size_bytes: float, shape: Footprint, known: Rates) -> _Part:
    """Between slices first, while pieces are small: V (S - 1) / N a device."""
    sent = size_bytes * (shape.slices - 1) / shape.size
    return _dcn(sent, 1, shape, known).then(_gather_slice("all_gather", size_bytes, shape, known))


def _reduce_scatter(size_bytes: float, shape: Footprint, known: Rates) -> _Part:
    """Within the slice first; then every device exchanges its shard with the other slices."""
    return _all_gather(size_bytes, shape, known)


def _all_reduce(size_bytes: float, shape: Footprint, known: Rates) -> _Part:
    """Reduce-scatter in the slice, all-reduce of the shards between slices, all-gather back."""
    half = _gather_slice("all_reduce", size_bytes, shape, known)
    shard = size_bytes / shape.per_slice
    middle = _dcn(2 * shard * (shape.slices - 1) / shape.slices, 2, shape, known)
    return half.then(middle).then(half)


def _broadcast(size_bytes: float, shape: Footprint, known: Rates) -> _Part:
    """As PyTorch/XLA lowers it on TPUs: an all-reduce to which only the source brings data."""
    return _all_reduce(size_bytes, shape, known)


def _barrier(_size_bytes: float, shape: Footprint, known: Rates) -> _Part:
    return _all_reduce(BARRIER_BYTES, shape, known)


def _all_to_all(size_bytes: float, shape: Footprint, known: Rates) -> _Part:
    """Between slices, between the cores, then axis by axis in as many colours as axes."""
    held = size_bytes / shape.size
    between = _dcn(held * (shape.slices - 1) / shape.slices, 1, shape, known)
    cores = _NOTHING
    if shape.cores > 1:
        moved = held * (shape.cores - 1) / shape.cores
        cores = _Part(time_s=moved / known.on_chip_bytes_per_s)
    return between.then(cores).then(_exchange_ici(held, shape.spans, known))


def _exchange_ici(held_bytes: float, spans: tuple[AxisSpan, ...], known: Rates) -> _Part:
    """All-to-all axis by axis; as many colours as axes, each beginning at another one, so that all
    phases use all axes and take as long as the slowest.
    """
    if not spans:
        return _NOTHING
    rate, hop = known.device_link_bytes_per_s, known.hop_latency_s
    busiest = slowest = latency = 0.0
    for span in spans:
        block = held_bytes / len(spans) / span.count
        time_of = ring_exchange_s if span.ring else line_exchange_s
        slowest = max(slowest, time_of(span, block / rate, hop))
        counts = exchange_crossings(span)
        busiest = max(busiest, sum(counts) * block * span.sharing * len(spans))
        latency += len(counts) * span.stride * hop
    link_bytes = busiest * known.link_bytes_per_s / rate
    return _Part(time_s=slowest * len(spans), latency_s=latency, link_bytes=link_bytes)


def _twisted_all_to_all(size_bytes: float, topology: Topology, known: Rates) -> _Part:
    """Over a whole twisted torus: shortest routes that load all links alike, V x mean distance in
    all. Measured gains over the untwisted torus: arXiv:2304.01433, section 2.8.
    """
    distance, longest = twisted_distances(topology)
    links = 2 * len(topology.shape) * topology.chips_per_slice
    link_bytes = size_bytes * distance / links
    latency = longest * known.hop_latency_s
    seconds = link_bytes / known.link_bytes_per_s + latency
    return _Part(time_s=seconds, latency_s=latency, link_bytes=link_bytes)


def _point_to_point(
    kind: str, size_bytes: float, group: Group, topology: Topology, known: Rates
) -> _Part:
    if kind == "send_recv":
        if len(group) != 2:
            raise CollectiveError(f"[send_recv] expected a group of two devices, got {len(group)}")
        return _permute(size_bytes, ((group[0], group[1]),), topology, known)
    return _permute(size_bytes / len(group), _shifts(group, topology), topology, known)


@functools.lru_cache(maxsize=1024)
def _shifts(group: Group, topology: Topology) -> tuple[tuple[int, int], ...]:
    """Every member to the next one, in all groups of this form."""
    groups = siblings(group, topology)
    return tuple(
        (source, target)
        for one in groups
        for source, target in zip(one, (*one[1:], one[0]), strict=True)
    )


def permute_cost(
    size_bytes: float, pairs: Sequence[tuple[int, int]], topology: Topology
) -> CollectiveCost:
    """A collective_permute with these (source, target) device numbers, `size_bytes` per message."""
    known = rates(topology.chip)
    part = _permute(size_bytes, tuple(pairs), topology, known)
    members = tuple(sorted({device for pair in pairs for device in pair}))
    shape = footprint(members, topology)
    return _cost(
        "collective_permute", part, "dimension-ordered routes", shape, launch_s=known.launch_s
    )


def _permute(
    size_bytes: float, pairs: tuple[tuple[int, int], ...], topology: Topology, known: Rates
) -> _Part:
    """Messages of equal size over their shortest routes: the busiest link, and the longest way."""
    asked = traffic(pairs, topology)
    link_bytes = asked.busiest * size_bytes
    latency = asked.hops * known.hop_latency_s
    seconds = link_bytes / known.link_bytes_per_s + latency
    if asked.on_chip:
        seconds = max(seconds, size_bytes / known.on_chip_bytes_per_s)
    dcn_bytes = asked.outgoing * size_bytes
    if asked.outgoing:
        latency = max(latency, known.dcn_latency_s)
        seconds = max(seconds, dcn_bytes / known.nic_bytes_per_s + known.dcn_latency_s)
    return _Part(time_s=seconds, latency_s=latency, link_bytes=link_bytes, dcn_bytes=dcn_bytes)


def _irregular(
    kind: str, size_bytes: float, group: Group, topology: Topology, known: Rates
) -> _Part:
    """A ring both ways through the members in the order of their numbers, over shortest routes."""
    order = tuple(sorted(group))
    pairs = tuple(zip(order, (*order[1:], order[0]), strict=True))
    asked = traffic((*pairs, *((b, a) for a, b in pairs)), topology)
    rounds = {"all_reduce": 2, "broadcast": 2, "barrier": 2}.get(kind, 1)
    size = BARRIER_BYTES if kind == "barrier" else size_bytes
    moved = size * (len(order) - 1) / (2 * len(order)) * rounds
    if kind == "all_to_all":
        moved = size / 8
    steps = len(order) // 2 * rounds
    latency = steps * asked.hops * known.hop_latency_s
    link_bytes = asked.busiest * moved * topology.cores
    seconds = link_bytes / known.link_bytes_per_s + latency
    if asked.outgoing:
        latency += steps * known.dcn_latency_s
        sent = asked.outgoing * moved
        seconds = max(seconds, sent / known.nic_bytes_per_s) + steps * known.dcn_latency_s
        return _Part(time_s=seconds, latency_s=latency, link_bytes=link_bytes, dcn_bytes=sent)
    return _Part(time_s=seconds, latency_s=latency, link_bytes=link_bytes)


_RULES: dict[str, _Rule] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "barrier": _barrier,
}
_POINT_TO_POINT = ("collective_permute", "send_recv")
KINDS = (*_RULES, *_POINT_TO_POINT)
