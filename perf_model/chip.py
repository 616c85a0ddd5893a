"""TPU chips as data: loads chips/*.toml strictly into frozen `Chip` objects."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtpu.perf_model.facts import Fact, FactError, parse_fact, read_toml

FOLDER = Path(__file__).parent / "chips"
_SECTIONS = (
    "structure",
    "peak_ops_per_s",
    "mxu",
    "mxu.time_factor",
    "vpu",
    "memory",
    "ici",
    "dcn",
)
_TOP = {"name": str, "description": str, "aliases": list, "year": int, "complete": bool}
_MODEL_NEEDS = (
    "structure.tensorcores",
    "structure.cores_per_device",
    "peak_ops_per_s.bf16",
    "mxu.count",
    "mxu.side",
    "mxu.flops_per_cycle",
    "mxu.clock_hz",
    "mxu.vector_rows",
    "mxu.time_factor.f32",
    "mxu.time_factor.f32_high",
    "mxu.time_factor.f32_highest",
    "vpu.lanes",
    "vpu.sublanes",
    "vpu.valu_slots",
    "vpu.eup_slots",
    "vpu.xlu_slots",
    "memory.vmem_bytes",
    "memory.scoped_vmem_bytes",
    "memory.hbm_bytes",
    "memory.hbm_usable_bytes",
    "memory.hbm_bytes_per_s",
)
_FLOAT8 = {"f8E4M3FN": "fp8", "f8E5M2": "fp8"}
_INTEGERS = {"i8": "int8", "ui8": "int8", "i4": "int4", "ui4": "int4"}


class UnknownChip(ValueError):
    """No chip of that name; the message lists the known ones."""


class IncompleteChip(ValueError):
    """A chip of which too few facts are public for an estimate."""


class ChipFileError(FactError):
    """A chip file that is not as it must be."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One TPU generation. Attributes and methods give values per *device*, what one process drives.

    On v2, v3 and TPU7x one core is a device and a chip has two; v4 and v5p fuse both cores into one
    device. `facts` keeps every number as it stands in the file, under "section.key".
    """

    name: str
    description: str
    aliases: tuple[str, ...]
    year: int
    complete: bool
    facts: Mapping[str, Fact]

    def value(self, key: str) -> float:
        """The file's number under "section.key". Raises IncompleteChip where there is none."""
        fact = self.facts.get(key)
        if fact is None:
            raise IncompleteChip(
                f"[chip] {self.name}: no public value of {key}, so nothing can be estimated"
            )
        return fact.value

    def has(self, key: str) -> bool:
        """Whether the file gives "section.key"."""
        return key in self.facts

    def require_complete(self) -> Chip:
        """This chip, if everything an estimate needs is known; raises IncompleteChip otherwise."""
        if not self.complete:
            missing = [key for key in _MODEL_NEEDS if key not in self.facts]
            raise IncompleteChip(
                f"[chip] {self.name}: an estimate needs {', '.join(missing)}, not public so far"
            )
        return self

    @functools.cached_property
    def cores_per_device(self) -> int:
        """TensorCores that one device drives."""
        return int(self.value("structure.cores_per_device"))

    @functools.cached_property
    def devices_per_chip(self) -> int:
        """Devices (processes) per chip."""
        return int(self.value("structure.tensorcores")) // self.cores_per_device

    @functools.cached_property
    def _device_share(self) -> float:
        return 1.0 / self.devices_per_chip

    @functools.cached_property
    def clock_hz(self) -> float:
        """Cycles per second of a core."""
        return self.value("mxu.clock_hz")

    @functools.cached_property
    def mxu_side(self) -> int:
        """Rows (= columns) of one matrix unit."""
        return int(self.value("mxu.side"))

    @functools.cached_property
    def mxu_count(self) -> int:
        """Matrix units per device."""
        return int(self.value("mxu.count")) * self.cores_per_device

    @functools.cached_property
    def flops_per_cycle(self) -> float:
        """bfloat16 FLOP per cycle of a device, as the TPU compiler counts them."""
        return self.value("mxu.flops_per_cycle") * self.cores_per_device

    @functools.cached_property
    def hbm_bytes(self) -> int:
        """HBM per device."""
        return int(self.value("memory.hbm_bytes") * self._device_share)

    @functools.cached_property
    def hbm_usable_bytes(self) -> int:
        """HBM per device that the compiler lets a program use."""
        return int(self.value("memory.hbm_usable_bytes"))

    @functools.cached_property
    def hbm_bytes_per_s(self) -> float:
        """Peak HBM bandwidth per device."""
        return self.value("memory.hbm_bytes_per_s") * self._device_share

    @functools.cached_property
    def vmem_bytes(self) -> int:
        """VMEM per device."""
        return int(self.value("memory.vmem_bytes")) * self.cores_per_device

    @functools.cached_property
    def vector_lanes(self) -> int:
        """Elements that one vector op of a device's cores works on."""
        return int(self.value("vpu.lanes") * self.value("vpu.sublanes")) * self.cores_per_device

    @functools.cached_property
    def valu_ops_per_cycle(self) -> float:
        """Element operations per cycle of a device's vector ALUs."""
        return self.vector_lanes * self.value("vpu.valu_slots")

    @functools.cached_property
    def eup_ops_per_cycle(self) -> float:
        """Transcendental element operations per cycle of a device."""
        return self.vector_lanes * self.value("vpu.eup_slots")

    @functools.cached_property
    def xlu_ops_per_cycle(self) -> float:
        """Elements that a device's cross-lane units move per cycle."""
        return self.vector_lanes * self.value("vpu.xlu_slots")

    def peak_flops_per_s(self, dtype: str = "bf16") -> float:
        """Peak operations/s per device for an MLIR dtype; bf16's where the chip lists none."""
        key = "peak_ops_per_s." + _FLOAT8.get(dtype, _INTEGERS.get(dtype, dtype))
        fact = self.facts.get(key) or self.facts["peak_ops_per_s.bf16"]
        return fact.value * self._device_share

    def mxu_time_factor(self, dtype: str, precision: str = "DEFAULT") -> float:
        """MXU time of a large GEMM of `dtype` relative to bfloat16."""
        if dtype in {"f32", "f64"}:
            key = {"HIGH": "f32_high", "HIGHEST": "f32_highest"}.get(precision, "f32")
        else:
            key = {"i8": "int8", "ui8": "int8"}.get(dtype, dtype)
        fact = self.facts.get(f"mxu.time_factor.{key}")
        return fact.value if fact is not None else 1.0


def names() -> tuple[str, ...]:
    """Names of all chips, oldest first."""
    return tuple(sorted(_paths(), key=lambda n: (load(n).year, n)))


def load(name: str) -> Chip:
    """The chip called `name` (or one of its aliases, in any case). Raises UnknownChip,
    ChipFileError.
    """
    wanted = name.strip().lower()
    if wanted in _paths():
        return load_file(_paths()[wanted])
    for candidate in _paths().values():
        chip = load_file(candidate)
        if wanted in chip.aliases:
            return chip
    known = sorted(_paths())
    close = difflib.get_close_matches(wanted, known, n=1, cutoff=0.4)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise UnknownChip(f"[chip] unknown chip {name!r}{hint}, expected one of {', '.join(known)}")


@functools.cache
def _paths() -> dict[str, Path]:
    return {p.stem: p for p in sorted(FOLDER.glob("*.toml")) if p.stem != "sources"}


@functools.cache
def sources() -> Mapping[str, str]:
    """What each short source name of the chip files stands for."""
    return {k: str(v) for k, v in read_toml(FOLDER / "sources.toml").items()}


@functools.cache
def load_file(path: Path) -> Chip:
    """The chip of one TOML file. Raises ChipFileError naming file and key."""
    try:
        return _parse(path, read_toml(path))
    except ChipFileError:
        raise
    except FactError as error:
        raise ChipFileError(f"[chip] {error}") from error


def _parse(path: Path, data: Mapping[str, object]) -> Chip:
    for key, type_ in _TOP.items():
        if not isinstance(data.get(key), type_):
            raise ChipFileError(
                f"[chip] {path.name}: {key}: expected {type_.__name__}, got {data.get(key)!r}"
            )
    if data["name"] != path.stem:
        raise ChipFileError(
            f"[chip] {path.name}: name: expected {path.stem!r}, got {data['name']!r}"
        )
    facts: dict[str, Fact] = {}
    for section, table in data.items():
        if section not in _TOP:
            _section(path, section, table, facts)
    missing = [key for key in _MODEL_NEEDS if key not in facts]
    if data["complete"] and missing:
        raise ChipFileError(f"[chip] {path.name}: {missing[0]}: missing, though complete = true")
    aliases = data["aliases"]
    assert isinstance(aliases, list)
    year = data["year"]
    assert isinstance(year, int)
    return Chip(
        name=path.stem,
        description=str(data["description"]),
        aliases=tuple(str(a) for a in aliases),
        year=year,
        complete=bool(data["complete"]),
        facts=facts,
    )


def _section(path: Path, section: str, table: object, facts: dict[str, Fact]) -> None:
    if section not in _SECTIONS or not isinstance(table, dict):
        raise ChipFileError(
            f"[chip] {path.name}: {section}: unknown section, expected {', '.join(_SECTIONS)}"
        )
    for key, entry in table.items():
        name = f"{section}.{key}"
        if name in _SECTIONS:
            _section(path, name, entry, facts)
        else:
            facts[name] = parse_fact(f"{path.name}: {name}", entry, sources())
