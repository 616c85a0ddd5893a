"""Knobs: environment, overrides, and the README's table of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtpu import config
from torchtpu.errors import ConfigError

README = Path(__file__).parents[1] / "README.md"


def test_an_override_ends_with_its_block() -> None:
    before = config.get("fallback")
    with config.override(fallback="warn"):
        assert config.get("fallback") == "warn"
    assert config.get("fallback") == before


@pytest.mark.parametrize(
    ("knob", "variable", "text", "message"),
    [
        (
            "mode",
            "TORCHTPU_MODE",
            "strictt",
            r"\[TORCHTPU_MODE\] unknown value 'strictt'.*mean 'strict'",
        ),
        (
            "sim_numerics",
            "TORCHTPU_SIM_NUMERICS",
            "2",
            r"\[TORCHTPU_SIM_NUMERICS\] expected one of 1",
        ),
        ("cache_entries", "TORCHTPU_CACHE_ENTRIES", "many", "expected an integer, got 'many'"),
    ],
)
def test_a_wrong_value_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, knob: str, variable: str, text: str, message: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError, match=message):
        config.KNOBS[knob].read()


def test_older_names_of_a_variable_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_LAUNCH_BLOCKING", "yes")
    assert config.KNOBS["launch_blocking"].read() is True


def test_an_unknown_knob_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fallback'"):
        config.get("fallbak")


def test_the_readme_lists_every_variable_with_its_text() -> None:
    text = README.read_text()
    for knob in config.KNOBS.values():
        for variable in knob.variables:
            assert f"`{variable}`" in text
        assert knob.doc in text
