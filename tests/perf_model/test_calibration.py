"""Fitted constants: strict files, reproducible fits, only rows of the fit half."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtpu.cli import perf
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model import fitted
from torchtpu.perf_model.calibration import fit as fits
from torchtpu.perf_model.calibration.fit import Case, fit
from torchtpu.perf_model.calibration.generations import STAGES
from torchtpu.perf_model.chip import sources
from torchtpu.perf_model.facts import FactError, read_toml
from torchtpu.perf_model.fitted import NAMES, Calibration, calibration_of, load, with_constants
from torchtpu.perf_model.validation.rows import rows

V6E = chips.load("v6e")


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    assert perf.main(["calibrate", "--folder", str(folder)]) == 0
    return folder


def test_a_new_fit_gives_the_files_that_are_here(again: Path) -> None:
    written = {path.name for path in again.glob("*.toml")}
    assert written == {f"{name}.toml" for name in (*STAGES, fitted.DEFAULT)}
    for path in again.glob("*.toml"):
        mine, there = read_toml(path), read_toml(fitted.FOLDER / path.name)
        for key, entry in mine.items():
            if key != "date":
                assert isinstance(entry, dict)
                kept = there[key]
                assert isinstance(kept, dict)
                assert entry["value"] == pytest.approx(kept["value"], rel=0.01), (path.name, key)


def test_every_generation_has_every_constant_with_source_and_rows() -> None:
    for name in chips.names():
        if chips.load(name).complete:
            facts = fitted.facts(name)
            assert set(facts) == set(NAMES)
            for key, fact in facts.items():
                assert fact.source in sources()
                assert "rows" in fact.note or "geometric mean" in fact.note, (name, key)


def test_no_constant_is_fitted_to_one_row_or_to_the_held_out_half() -> None:
    halves = {row.id: row.half for row in rows()}
    for name, stages in STAGES.items():
        for stage in stages:
            cases = stage.cases(name)
            assert len(cases) > len(stage.names), (name, stage.what)
            assert all(halves.get(case.name, "fit") == "fit" for case in cases)


def test_constants_are_physical() -> None:
    for name in (*STAGES, fitted.DEFAULT):
        known = load(name)
        for key in NAMES:
            low, _, high = fits.RANGES[key]
            assert low < getattr(known, key) < high, (name, key)


def test_one_case_is_refused() -> None:
    with pytest.raises(ValueError, match="1 rows for kernel_s"):
        fit(V6E, ("kernel_s",), [Case(name="x", ratio=lambda chip: 1.0)], "fit_published")


def test_a_fit_finds_what_made_its_rows() -> None:
    true = with_constants(V6E, {"kernel_s": 3e-6, "hbm_efficiency": 0.7})

    def case(size: int) -> Case:
        def seconds(chip: chips.Chip) -> float:
            known = calibration_of(chip)
            return known.kernel_s + size / (known.hbm_efficiency * chip.hbm_bytes_per_s)

        return Case(name=str(size), ratio=lambda chip: seconds(chip) / seconds(true))

    found = fit(V6E, ("kernel_s", "hbm_efficiency"), [case(s) for s in (1, 10**7, 10**9)], "x")
    assert found.values["kernel_s"] == pytest.approx(3e-6, rel=0.01)
    assert found.values["hbm_efficiency"] == pytest.approx(0.7, rel=0.01)
    assert found.mean_abs_error_percent < 1


def test_given_constants_hold_and_add_up() -> None:
    once = with_constants(V6E, {"kernel_s": 1e-5})
    twice = with_constants(once, {"hbm_efficiency": 0.6})
    assert calibration_of(twice).kernel_s == 1e-5
    assert calibration_of(twice).hbm_efficiency == 0.6
    assert calibration_of(V6E) == load("v6e")
    assert isinstance(load("a chip without a file"), Calibration)
    with pytest.raises(FactError, match="unknown constant"):
        with_constants(V6E, {"speed": 1.0})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernel_s = 3\n", "date: expected text"),
        ('date = "d"\nspeed = 3\n', "speed: unknown, expected one of mxu_efficiency"),
        ('date = "d"\nkernel_s = 3\n', "kernel_s: expected a table"),
    ],
)
def test_a_broken_file_says_what_and_where(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "default.toml").write_text(text)
    monkeypatch.setattr(fitted, "FOLDER", tmp_path)
    with pytest.raises(FactError, match=message) as caught:
        fitted.facts.__wrapped__("v6e")
    assert "default.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["v9"], "no rows of 'v9', expected one of v3"), (["--folder", "/no/folder"], "no folder")],
)
def test_wrong_arguments_are_one_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert perf.main(["calibrate", *arguments]) == 2
    assert message in capsys.readouterr().err
