"""Constants carry a source; a broken file says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtpu.perf_model import constants as module
from torchtpu.perf_model.chip import sources
from torchtpu.perf_model.facts import FactError, parse_fact, read_toml


def test_every_constant_has_a_source_and_says_why() -> None:
    for name, fact in module.facts().items():
        assert fact.source in sources(), name
        assert len(fact.note) > 20, name


def test_values_are_sane() -> None:
    known = module.constants()
    assert 0 < known.vector_efficiency <= 1
    assert 0 < known.launch_s < 1e-5


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "expected a table"),
        ({"value": 1, "unit": "s", "per": "x"}, r"missing \['source'\]"),
        (
            {"value": 1, "unit": "s", "per": "x", "source": "jax", "vlaue": 2},
            r"unknown \['vlaue'\]",
        ),
        ({"value": True, "unit": "s", "per": "x", "source": "jax"}, "expected a number"),
        (
            {"value": 1, "unit": "s", "per": "x", "source": "jax", "alternatives": [{"value": 2}]},
            "expected a list",
        ),
        ({"value": 1, "unit": 5, "per": "x", "source": "jax"}, "are text"),
    ],
)
def test_a_fact_is_checked(entry: object, message: str) -> None:
    with pytest.raises(FactError, match=message) as caught:
        parse_fact("file.toml: key", entry, {"jax"})
    assert "file.toml: key" in str(caught.value)


def test_a_missing_file_is_a_fact_error(tmp_path: Path) -> None:
    with pytest.raises(FactError, match=r"absent\.toml"):
        read_toml(tmp_path / "absent.toml")
