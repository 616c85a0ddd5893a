"""What SCALE-Sim says of the published GEMM rows. Runs under a Python that has scalesim; the README
says how to make one.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import importlib
import io
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.published import Json, chip, devices_per_chip, rows, write

CONFIG = """\
[general]
run_name = run
[architecture_presets]
ArrayHeight: {side}
ArrayWidth: {side}
IfmapSramSzkB: 65536
FilterSramSzkB: 65536
OfmapSramSzkB: 65536
IfmapOffset: 0
FilterOffset: 1000000000
OfmapOffset: 2000000000
Dataflow: ws
Bandwidth: 10
ReadRequestBuffer: 512
WriteRequestBuffer: 512
[layout]
IfmapCustomLayout: False
IfmapSRAMBankBandwidth: 10
IfmapSRAMBankNum: 10
IfmapSRAMBankPort: 2
FilterCustomLayout: False
FilterSRAMBankBandwidth: 10
FilterSRAMBankNum: 10
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport: false
[run_presets]
InterfaceBandwidth: CALC
UseRamulatorTrace: False
"""
NOTES = (
    "weight stationary, one array per matrix unit, InterfaceBandwidth CALC: memory never stalls",
    "the matrix units of a device share a product by the best of the three partitions of SCALE-Sim"
    " v3 (multi-core/analytical.py of its artifact)",
    "cycles of a fold are simulated; folds are alike, so their number multiplies (checked by a run"
    " of four)",
    "time = cycles / clock, the clock at which full arrays reach the published bfloat16 peak",
)


def simulate(m: int, k: int, n: int, side: int) -> int:
    """Compute cycles of a run of [m, k] x [k, n] on one array of side x side."""
    scale_sim = importlib.import_module("scalesim.scale_sim")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        config, layers, layout = (Path(folder, name) for name in ("a.cfg", "a.csv", "b.csv"))
        config.write_text(CONFIG.format(side=side), encoding="utf-8")
        layers.write_text(f"Layer,M,N,K,\nproduct,{m},{n},{k},\n", encoding="utf-8")
        layout.write_text("Layer name,\n", encoding="utf-8")  # read even where none is custom
        scale_sim.scalesim(
            save_disk_space=True,
            verbose=False,
            config=str(config),
            topology=str(layers),
            layout=str(layout),
            input_type_gemm=True,
        ).run_scale(top_path=folder)
        with Path(folder, "run", "COMPUTE_REPORT.csv").open(encoding="utf-8") as file:
            (line,) = csv.DictReader(file, skipinitialspace=True)
    return int(line["Total Cycles"]) + 1  # the report counts from 0


@functools.cache
def fold_cycles(m: int, side: int) -> int:
    """Cycles in which m rows pass one filled array."""
    return simulate(m, side, side, side)


def check_folds(side: int) -> None:
    """Raises if a run of two by two folds is not four times as long as one of them."""
    one, four = fold_cycles(side, side), simulate(side, 2 * side, 2 * side, side)
    if four != 4 * one:
        raise RuntimeError(f"[scale_sim] four folds of {side}: expected {4 * one}, got {four}")


def partitions(units: int) -> Iterator[tuple[int, int, int]]:
    """(of m, of k, of n): the parts of a product on `units` arrays; at most two sizes are cut."""
    for first in (f for f in range(1, units + 1) if units % f == 0):
        second = units // first
        yield from ((1, first, second), (first, 1, second), (first, second, 1))


def cycles(m: int, k: int, n: int, side: int, units: int) -> int:
    """Cycles of the longest part of the best partition."""
    return min(
        fold_cycles(math.ceil(m / of_m), side)
        * math.ceil(k / of_k / side)
        * math.ceil(n / of_n / side)
        for of_m, of_k, of_n in set(partitions(units))
    )


def predict(row: Json) -> Json:
    """The row with cycles and seconds."""
    facts, config = chip(row["chip"]), row["config"]
    units = int(facts["mxu.count"] * facts["structure.cores_per_device"])
    side = int(facts["mxu.side"])
    peak_flops_per_s = facts["peak_ops_per_s.bf16"] / devices_per_chip(facts)
    clock_hz = peak_flops_per_s / (2 * side**2 * units)
    found = cycles(config["m"], config["k"], config["n"], side, units)
    return row | {"cycles": found, "seconds": found / clock_hz}


def main() -> None:
    """Every GEMM row, printed and, with --json, written for table.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write what table.py reads")
    options = parser.parse_args()
    for side in (128, 256):
        check_folds(side)
    found = [predict(row) for row in rows("gemm")]
    for answer in found:
        print(answer["id"], answer["cycles"], answer["seconds"])
    if options.json:
        write(options.json, "SCALE-Sim", "scalesim", found, NOTES)


if __name__ == "__main__":
    main()
