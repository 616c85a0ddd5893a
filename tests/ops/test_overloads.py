"""Overloads called one by one give what the CPU gives, and the support table says how.

A twentieth of the lists, by the day; `make sweep` takes all.
"""

from __future__ import annotations

import datetime

import pytest
import torch

from tests.daily import PART
from tests.ops import overloads
from torchtpu.cli import lowerings
from torchtpu.eager import support

_TODAY = overloads.names("cuda")[PART % 20 :: 20]


@pytest.mark.parametrize(
    "names", [_TODAY[i : i + 10] for i in range(0, len(_TODAY), 10)], ids=lambda names: names[0]
)
def test_a_twentieth_of_the_overloads_with_a_cuda_kernel(names: list[str]) -> None:
    calls = {name: overloads.calls_of(name, (torch.float32, torch.int64)) for name in names}
    found = [overloads.outcome(name, calls[name][:2]) for name in names]
    assert not [v for o in found if o.calls and (v := overloads.verdict(o))]


def test_deviations_are_few_and_name_what_there_is() -> None:
    cuda, known = overloads.names("cuda"), overloads.deviations()
    assert set(known) <= set(cuda)
    assert len(known) <= 0.03 * len(cuda)
    assert not set(known) & set(overloads.names("core"))
    assert all(row["reason"] and datetime.date.fromisoformat(row["date"]) for row in known.values())


def test_the_support_table_says_how() -> None:
    by_name = {r.overload: r for r in lowerings.rows("(add|div|sort|median|equal|dropout).*")}
    assert by_name["aten::add.Tensor"].how == "lowering"
    assert by_name["aten::add_.Tensor"].by == "aten::add.Tensor"
    assert by_name["aten::equal"].how == "kernel"
    assert by_name["aten::dropout"].how == "composite"
    assert "float32" in by_name["aten::add.Tensor"].dtypes


def test_forms_by_hand_have_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(support.by_hand().values()) == set(support.BY_HAND)
    assert lowerings.main(["--by-hand"]) == 0
    assert f"{len(support.by_hand())} by hand" in capsys.readouterr().out


def test_every_core_overload_has_a_way() -> None:
    fallbacks = {r.overload for r in lowerings.rows() if r.how == "fallback"}
    assert not fallbacks & set(overloads.names("core"))


def test_the_table_in_the_docs_is_the_command_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert lowerings.main(["--format", "markdown"]) == 0
    assert lowerings.DOCUMENT.read_text().endswith(capsys.readouterr().out)
