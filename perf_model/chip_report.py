"""Renders chips: the table of all of them, and every fact of one with its source."""

from __future__ import annotations

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.facts import Fact
from torchtpu.perf_model.quantities import rate, size, table

Json = dict[str, object]
_HEAD = [
    "chip",
    "year",
    "devices/chip",
    "bf16 peak",
    "HBM",
    "usable",
    "HBM bandwidth",
    "MXU",
    "VMEM",
]


def _cells(chip: Chip) -> list[str]:
    if not chip.complete:
        peak = rate(chip.value("peak_ops_per_s.bf16"), "FLOP/s") + "/chip"
        return [chip.name, str(chip.year), "-", peak, "-", "-", "-", "-", "facts incomplete"]
    return [
        chip.name,
        str(chip.year),
        str(chip.devices_per_chip),
        rate(chip.peak_flops_per_s(), "FLOP/s"),
        size(chip.hbm_bytes),
        size(chip.hbm_usable_bytes),
        rate(chip.hbm_bytes_per_s, "B/s"),
        f"{chip.mxu_count} x {chip.mxu_side}^2",
        size(chip.vmem_bytes),
    ]


def chips_table() -> str:
    """All chips, one line each; values are per device, what one process drives."""
    rows = [_HEAD, *(_cells(chips.load(name)) for name in chips.names())]
    return (
        "\n".join(table(rows, frozenset({1, 2})))
        + "\nvalues are per device; one process drives one device\n"
    )


def _fact_json(fact: Fact) -> Json:
    found: Json = {"value": fact.value, "unit": fact.unit, "per": fact.per, "source": fact.source}
    if fact.alternatives:
        found["alternatives"] = [{"value": a.value, "source": a.source} for a in fact.alternatives]
    if fact.note:
        found["note"] = fact.note
    return found


def chip_json(chip: Chip) -> Json:
    """One chip as plain data: what a device has, and the facts behind it."""
    found: Json = {
        "name": chip.name,
        "description": chip.description,
        "year": chip.year,
        "complete": chip.complete,
    }
    if chip.complete:
        found["device"] = {
            "devices_per_chip": chip.devices_per_chip,
            "bf16_flops_per_s": chip.peak_flops_per_s(),
            "hbm_bytes": chip.hbm_bytes,
            "hbm_usable_bytes": chip.hbm_usable_bytes,
            "hbm_bytes_per_s": chip.hbm_bytes_per_s,
            "vmem_bytes": chip.vmem_bytes,
            "mxu_count": chip.mxu_count,
            "mxu_side": chip.mxu_side,
            "clock_hz": chip.clock_hz,
        }
    found["facts"] = {key: _fact_json(fact) for key, fact in chip.facts.items()}
    return found


def chips_json() -> Json:
    """All chips as plain data."""
    return {"format": 1, "chips": [chip_json(chips.load(name)) for name in chips.names()]}


def chip_text(chip: Chip) -> str:
    """Every fact of one chip, with the values of sources that disagree."""
    rows = [["fact", "value", "unit", "per", "source", "other sources"]]
    for key, fact in chip.facts.items():
        others = ", ".join(f"{a.value:g} ({a.source})" for a in fact.alternatives)
        rows.append([key, f"{fact.value:.10g}", fact.unit, fact.per, fact.source, others])
    cited = {f.source for f in chip.facts.values()}
    cited |= {a.source for f in chip.facts.values() for a in f.alternatives}
    lines = [
        f"{chip.name}: {chip.description}, {chip.year}",
        *table(rows, frozenset({1})),
        "",
        "sources",
    ]
    lines += [f"  {name}: {text}" for name, text in chips.sources().items() if name in cited]
    return "\n".join(lines) + "\n"
