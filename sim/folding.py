"""The smallest network on which collectives run as on the whole one.

Chips that a shift of the torus maps onto each other are simulated once. That is sound where the
shift maps every group onto a group and every link onto a link:

- an axis of which all collectives use nothing, or whole rings: a shift by one;
- an axis on which they use lines of one period: a shift by the period;
- a ring through a box, alone on the network: along the ring, as every chip has its own links;
- slices, and the cores of a chip: all of them do the same. Broken links leave only the cores alike.

Nothing folds with point-to-point messages, late devices, or groups that do not tile the network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torchtpu.perf_model.network.colours import used_spans
from torchtpu.perf_model.network.footprint import AXES, Footprint
from torchtpu.perf_model.network.topology import Topology
from torchtpu.sim.faults import Faults
from torchtpu.sim.links import Fold, unfolded


def folded(
    collectives: Sequence[tuple[str, Footprint]], topology: Topology, broken: Faults
) -> Fold:
    """The network for (kind, footprint) of collectives whose groups tile the topology."""
    if broken.late_ps:
        return unfolded(topology)
    if broken:
        return dataclasses.replace(unfolded(topology), cores=1)
    if len(collectives) == 1 and _through_box(*collectives[0]):
        return Fold(sizes=(1, 1, 1), rings=(True, True, True), slices=1, cores=1)
    sizes, rings = list(topology.sizes), list(topology.rings)
    for axis, name in enumerate(AXES):
        periods = {period for kind, shape in collectives for period in _periods(kind, shape, name)}
        if len(periods) <= 1:
            sizes[axis] = min(periods, default=1)
            rings[axis] = sizes[axis] == 1 and topology.rings[axis]
    x, y, z = sizes
    ring_x, ring_y, ring_z = rings
    return Fold(sizes=(x, y, z), rings=(ring_x, ring_y, ring_z), slices=1, cores=1)


def _through_box(kind: str, shape: Footprint) -> bool:
    return used_spans(kind, shape.spans) != shape.spans


def _periods(kind: str, shape: Footprint, axis: str) -> set[int]:
    """By how many chips the collective may be shifted along an axis that it uses."""
    whole = not _through_box(kind, shape)
    return {
        1 if span.ring and whole else span.count * span.stride
        for span in shape.spans
        if span.axis == axis
    }
