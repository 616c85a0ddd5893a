"""What the TPU compiler's cost analysis calls `optimal_seconds`, of the published GEMM rows.

JAX compiles ahead of time, without a TPU. Needs the project's Python with torchtpu[tpu].
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from benchmarks.peers.published import Json, sample, write
from torchtpu.perf_model.validation.rows import Row, rows

METRICS = ("gemm", "gemm_f16", "gemm_f16_small")
DTYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16}
TOPOLOGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "tpu7x": ("tpu7x:2x2x1", {}),
    "v4": ("v4:2x2x1", {"chip_config_name": "megacore"}),
    "v6e": ("v6e:2x2", {}),
}
NOTES = (
    "jit of jnp.dot for one device, default flags; `optimal_seconds` of cost_analysis()",
    "of a group of more than 16 rows every so many, the rows that the table lists",
)


@functools.cache
def device(chip: str) -> SingleDeviceSharding:
    """One device of the chip, that a program is compiled for."""
    name, options = TOPOLOGIES[chip]
    found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    return SingleDeviceSharding(found.devices[0])


def predict(row: Row) -> Json:
    """{id, config, seconds} of a GEMM row."""
    config, where = row.config, device(row.chip)
    left, right = (
        jax.ShapeDtypeStruct(shape, DTYPES[config["dtype"]], sharding=where)
        for shape in ((config["m"], config["k"]), (config["k"], config["n"]))
    )
    costs: Any = jax.jit(jnp.dot).lower(left, right).compile().cost_analysis()
    return {"id": row.id, "config": dict(config), "seconds": float(costs["optimal_seconds"])}


def main() -> None:
    """The GEMM rows, printed and, with --json, written for table.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write what table.py reads")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    found = []
    for metric in METRICS:
        for row in sample([row for row in rows() if row.metric == metric]):
            found.append(predict(row))
            print(row.id, found[-1]["seconds"], flush=True)
    if options.json:
        write(options.json, "libtpu optimal_seconds, jax", "jax", found, NOTES)


if __name__ == "__main__":
    main()
