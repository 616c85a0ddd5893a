"""Collectives: published bandwidths beside the model, closed form beside simulation, and speed."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import time

from torchtpu.perf_model.network import topology
from torchtpu.perf_model.network.collectives import collective_cost
from torchtpu.perf_model.network.topology import Topology
from torchtpu.sim.clock import to_s
from torchtpu.sim.collectives import simulate

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
SHAPES = (
    "v6e:2x4",
    "v6e:4x4",
    "v6e:8x8",
    "v6e:8x16",
    "v6e:16x16",
    "v5p:2x4x4",
    "v5p:4x4x4",
    "v5p:4x4x8",
    "tpu7x:2x2x1",
    "tpu7x:16x16x36",
)
SIZES = tuple(2**exponent for exponent in range(10, 36))
TPU_RECIPES = "github.com/AI-Hypercomputer/tpu-recipes@c8cfe2f6, microbenchmarks/"
IRONWOOD = TPU_RECIPES + "ironwood/collectives/all_gather.md"
TRILLIUM = TPU_RECIPES + "trillium/collectives/README.md"
# (what, kind, topology, slices, group, bytes of the full array, bytes that the source counts, GB/s)
BOOK = "How to Scale Your Model, sharding.md: a profiled all-gather of bfloat16[2048, 8192], 680 us"
Row = tuple[str, str, str, int, tuple[int, ...], int, float, float]


def published() -> list[tuple[str, Row]]:
    """(source, row) of the published bandwidths."""
    curve = {
        "2x2x1": (71.7703034, 129.1869148, 161.9040742, 174.765465, 178.7714158),
        "2x2x2": (69.53210305, 127.3945462, 162.0864029, 174.6652133, 178.7592252),
    }
    rows: list[tuple[str, Row]] = []
    for shape, values in curve.items():
        for number, value in enumerate(values):
            shard = 4 * 65536 * 4**number  # float32, one per device, gathered by each of two cores
            row = ("all-gather", "all_gather", f"tpu7x:{shape}", 1, (0, 2, 4, 6), 4 * shard)
            rows.append((IRONWOOD, (*row, 2 * 3 * shard, value)))
    gathered = 2 * 2048 * 8192
    line = ("all-gather", "all_gather", "v5e:4x4", 1, (0, 1, 2, 3), gathered)
    rows.append((BOOK, (*line, gathered * 3 / 4, gathered * 3 / 4 / 680e-6 / 1e9)))
    matrix = 2 * 17408**2
    pod, counted = tuple(range(256)), 2 * matrix * 255 / 256
    rows.append((TRILLIUM, ("psum", "all_reduce", "v6e:16x16", 1, pod, matrix, counted, 235.7595)))
    # Sharded over the slices first, so half of the matrix; the source divides by slices twice.
    across = ("psum over DCN", "all_reduce", "v6e:16x16", 2, (0, 256), matrix // 2, matrix / 2)
    rows.append((TRILLIUM, (*across, 4.1131)))
    return rows


def beside_published() -> list[dict[str, object]]:
    """Published and predicted bandwidth of every row."""
    found: list[dict[str, object]] = []
    for source, (what, kind, name, slices, group, size, counted, value) in published():
        cost = collective_cost(kind, size, group, topology.from_name(name, slices))
        predicted = counted / cost.time_s / 1e9
        found.append(
            {
                "what": f"{what} of {size / 1e6:.1f} MB on {slices}x{name}",
                "published_gb_per_s": round(value, 2),
                "predicted_gb_per_s": round(predicted, 2),
                "error_percent": round(100 * (predicted / value - 1), 1),
                "source": source,
            }
        )
    return found


def worst_ratio(found: Topology, kind: str) -> tuple[float, int]:
    """(simulated / closed form, bytes) where they differ most, over all sizes."""
    group = tuple(range(found.devices))
    worst = (1.0, 0)
    for size in SIZES:
        closed = collective_cost(kind, size, group, found).time_s
        ratio = to_s(simulate(kind, size, group, found).time_ps) / closed
        if abs(ratio - 1) > abs(worst[0] - 1):
            worst = (ratio, size)
    return worst


def agreement() -> dict[str, dict[str, float]]:
    """Per shape and kind, the ratio that is farthest from 1."""
    return {
        name: {kind: worst_ratio(topology.from_name(name), kind)[0] for kind in KINDS}
        for name in SHAPES
    }


def seconds_of_a_pod() -> float:
    """Time on the clock to simulate an all-reduce of 1 GiB over 9,216 chips."""
    found = topology.from_name("tpu7x:16x16x36")
    begin = time.perf_counter()
    simulate("all_reduce", 2**30, tuple(range(found.devices)), found)
    return time.perf_counter() - begin


def main() -> None:
    """Print the tables, or write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}: {shlex.join(sys.argv)}\n")
    rows, ratios, pod = beside_published(), agreement(), seconds_of_a_pod()
    for row in rows:
        print(
            f"{row['what']:44s} published {row['published_gb_per_s']:8.2f} GB/s   "
            f"model {row['predicted_gb_per_s']:8.2f} GB/s   {row['error_percent']:+.1f} %"
        )
    print("\nsimulation / closed form, farthest from 1 for sizes from 1 KiB to 32 GiB")
    print(f"{'':16s}" + "".join(f"{kind:>16s}" for kind in KINDS))
    for name, by_kind in ratios.items():
        print(f"{name:16s}" + "".join(f"{by_kind[kind]:16.3f}" for kind in KINDS))
    print(f"\nall-reduce over 9,216 chips simulated in {pod:.2f} s")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"published": rows, "agreement": ratios, "pod_s": pod}, file, indent=1)


if __name__ == "__main__":
    main()
