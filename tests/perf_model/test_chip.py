"""Chip files load strictly, and give values per device."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.chip import ChipFileError, IncompleteChip, UnknownChip

COMPLETE = ["v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x"]


@pytest.mark.parametrize("name", COMPLETE)
def test_compiler_cycles_agree_with_the_published_peak(name: str) -> None:
    chip = chips.load(name)
    assert chip.flops_per_cycle * chip.clock_hz == pytest.approx(chip.peak_flops_per_s(), rel=0.005)


@pytest.mark.parametrize("name", COMPLETE)
def test_usable_hbm_is_a_little_less_than_the_hbm(name: str) -> None:
    chip = chips.load(name)
    assert 0.92 * chip.hbm_bytes < chip.hbm_usable_bytes < 1.01 * chip.hbm_bytes


@pytest.mark.parametrize(
    ("name", "devices", "tflops", "gib", "gbytes_per_s"),
    [
        ("v3", 2, 61.5, 16, 450),
        ("v4", 1, 275, 32, 1200),
        ("v5e", 1, 197, 16, 819),
        ("v5p", 1, 459, 95, 2765),
        ("v6e", 1, 918, 32, 1638),
        ("tpu7x", 2, 1153.5, 96, 3690),
    ],
)
def test_values_are_per_device(
    name: str, devices: int, tflops: float, gib: int, gbytes_per_s: float
) -> None:
    chip = chips.load(name)
    assert chip.devices_per_chip == devices
    assert chip.peak_flops_per_s() == pytest.approx(tflops * 1e12)
    assert chip.hbm_bytes == gib * 2**30
    assert chip.hbm_bytes_per_s == pytest.approx(gbytes_per_s * 1e9)


def test_dtypes_have_their_own_peak() -> None:
    assert chips.load("v6e").peak_flops_per_s("i8") == 1836e12
    assert chips.load("tpu7x").peak_flops_per_s("f8E5M2") == pytest.approx(2307e12)
    assert chips.load("v4").peak_flops_per_s("f32") == 275e12


def test_disagreeing_sources_are_kept() -> None:
    fact = chips.load("v3").facts["peak_ops_per_s.bf16"]
    assert {a.value for a in fact.alternatives} == {123e12, 140e12}
    assert fact.source in chips.sources()


def test_aliases_and_case() -> None:
    assert chips.load("Trillium") is chips.load("v6e")
    assert chips.load("V5E").name == "v5e"


def test_unknown_chip_lists_the_known_ones() -> None:
    with pytest.raises(UnknownChip, match=r"did you mean v6e.*tpu7x.*v5p") as caught:
        chips.load("v6")
    assert isinstance(caught.value, ValueError)


def test_incomplete_chip_says_what_is_missing() -> None:
    chip = chips.load("8t")
    assert not chip.complete
    with pytest.raises(IncompleteChip, match=r"8t.*mxu.clock_hz"):
        chip.require_complete()


def test_names_are_the_files_oldest_first() -> None:
    names = chips.names()
    assert names[0] == "v2"
    assert set(COMPLETE) < set(names)
    assert {p.stem for p in chips.FOLDER.glob("*.toml")} - {"sources"} == set(names)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('unit = "Hz", ', "", r"v6e.toml: mxu.clock_hz: missing \['unit'\]"),
        ("value = 128,", 'value = "128",', r"vpu.lanes.value: expected a number"),
        ("value = 128,", "value = -1,", r"vpu.lanes.value: expected a number"),
        ('source = "jax"', 'source = "hearsay"', r"unknown source.*hearsay"),
        ("[vpu]", "[gpu]", r"v6e.toml: gpu: unknown section"),
        ("year = 2024", 'year = "2024"', r"year: expected int"),
        ('name = "v6e"', 'name = "v7e"', r"name: expected 'v6e'"),
        ("hbm_bytes_per_s = ", "hbm_speed = ", r"memory.hbm_bytes_per_s: missing, though complete"),
        ("complete = true", "complete = tru", r"v6e.toml: "),
    ],
)
def test_a_malformed_file_names_file_and_key(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = (chips.FOLDER / "v6e.toml").read_text()
    assert old in text
    path = tmp_path / "v6e.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ChipFileError, match=message):
        chips.load_file(path)
