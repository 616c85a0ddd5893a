"""OpInfos by the day: a twentieth of them in each dtype and mode.

`make sweep` takes every sample, dtype and mode.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import pytest
import torch

from tests.daily import PART
from tests.lowerings import opinfo
from tests.ops.sweep import DTYPES, MODES, Result, deviations, sweep, twentieth, verdict

_GROUP = 12  # OpInfos in one test
_NAMES = opinfo.names()
_TODAY = twentieth(_NAMES, PART)


def groups(names: Sequence[str]) -> list[list[str]]:
    """Return the names in tests' worth."""
    return [list(names[i : i + _GROUP]) for i in range(0, len(names), _GROUP)]


def wrong(results: Sequence[Result]) -> list[str]:
    """Return a line for each result that is not as it should be."""
    return [f"{r.op} {r.dtype} {r.mode}: {v}" for r in results if (v := verdict(r))]


@pytest.mark.parametrize("names", groups(_TODAY), ids=lambda names: names[0])
def test_a_twentieth_in_float32(names: list[str]) -> None:
    assert not wrong([sweep(name, "float32", "strict", 2) for name in names])


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "float32"])
@pytest.mark.parametrize("names", groups(_TODAY), ids=lambda names: names[0])
def test_a_twentieth_in_other_dtypes(names: list[str], dtype: str) -> None:
    assert not wrong([sweep(name, dtype, "strict", 1) for name in names])


@pytest.mark.parametrize("mode", [m for m in MODES if m != "strict"])
@pytest.mark.parametrize("names", groups(_TODAY), ids=lambda names: names[0])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # torch.compile's
def test_a_twentieth_in_other_modes_agrees_with_strict(names: list[str], mode: str) -> None:
    assert not wrong([sweep(name, "float32", mode, 1) for name in names])


def test_a_device_that_is_wrong_fails() -> None:
    corrupt = lambda op, *args, **kwargs: op(*args, **kwargs) * 1.01  # noqa: E731  # short
    for name in ("add", "nn.functional.gelu", "sum"):
        for trial in opinfo.trials(name, torch.float32, 2, actual=corrupt):
            with pytest.raises(AssertionError):
                trial()


def test_deviations_name_what_there_is() -> None:
    for row in deviations().values():
        assert row.op in _NAMES, row
        assert row.dtype in DTYPES, row
        assert row.mode in MODES, row
        assert row.fails != (row.tolerance is not None), row
        assert row.reason, row
        datetime.date.fromisoformat(row.date)
