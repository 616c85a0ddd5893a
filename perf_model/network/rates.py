"""Loads rates.toml: the constants of the network model that belong to no single chip."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtpu.perf_model.chip import Chip, sources
from torchtpu.perf_model.facts import Fact, FactError, read_tables

PATH = Path(__file__).parent / "rates.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConstants:
    """Constants of the network model; their meaning and source stand in rates.toml."""

    ici_hop_latency_s: float
    ici_launch_s: float
    ici_chunks: float
    dcn_latency_s: float
    dcn_efficiency: float
    dcn_slice_spread: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What one device gets of its chip's network while all devices use it alike.

    link_bytes_per_s: one direction of one ICI link, of the whole chip; device_link_bytes_per_s: the
    share of one device of it; on_chip_bytes_per_s: one direction between the cores of a chip (0
    where a chip is one device); nic_bytes_per_s: data-centre network per device, each direction.
    """

    link_bytes_per_s: float
    device_link_bytes_per_s: float
    on_chip_bytes_per_s: float
    nic_bytes_per_s: float
    hop_latency_s: float
    launch_s: float
    dcn_latency_s: float
    chunks: int


@functools.cache
def facts() -> Mapping[str, Fact]:
    """Every constant with unit, source and note, under "section_key"."""
    return {f"{section}_{key}": fact for section, key, fact in read_tables(PATH, sources())}


@functools.cache
def constants() -> NetworkConstants:
    """The constants as plain numbers. Raises FactError for a missing or unknown one."""
    try:
        return NetworkConstants(**{name: fact.value for name, fact in facts().items()})
    except TypeError as error:
        raise FactError(f"{PATH.name}: {error}") from error


def rates(chip: Chip) -> Rates:
    """The network of one device of a chip. Raises IncompleteChip where its links are not public."""
    known = constants()
    link = chip.value("ici.one_way_bytes_per_s")
    devices_per_host = chip.value("ici.chips_per_host") * chip.devices_per_chip
    nic = chip.value("dcn.nic_bytes_per_s") / devices_per_host
    several = chip.devices_per_chip > 1
    return Rates(
        link_bytes_per_s=link,
        device_link_bytes_per_s=link / chip.devices_per_chip,
        on_chip_bytes_per_s=chip.value("ici.on_chip_bytes_per_s") if several else 0.0,
        nic_bytes_per_s=nic * known.dcn_efficiency,
        hop_latency_s=known.ici_hop_latency_s,
        launch_s=chip.value("ici.launch_s") if chip.has("ici.launch_s") else known.ici_launch_s,
        dcn_latency_s=known.dcn_latency_s,
        chunks=int(known.ici_chunks),
    )
