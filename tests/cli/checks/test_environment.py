"""Section environment: what is in force, wrong, contradictory or a likely typo."""

from __future__ import annotations

import os

import pytest

from torchtpu.cli.checks import environment
from torchtpu.cli.checks.row import Row, Status
from torchtpu.config import KNOBS


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("TORCH", "TPU_", "JAX_", "XLA_", "PJRT_", "LIBTPU_")):
            monkeypatch.delenv(name)


def rows(monkeypatch: pytest.MonkeyPatch, **variables: str) -> dict[str, Row]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return {row.what: row for row in environment.rows(0.0)}


def test_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = rows(monkeypatch).values()
    assert (row.what, row.status) == ("variables", Status.OK)


def test_settings_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows(monkeypatch, TORCHTPU_CHECK_NAN="1")["TORCHTPU_CHECK_NAN"]
    assert row.status is Status.OK
    assert row.finding == f"'1' ({KNOBS['check_nan'].doc})"


def test_a_wrong_value_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows(monkeypatch, TORCHTPU_MODE="strikt")["TORCHTPU_MODE"]
    assert row.status is Status.FAIL
    assert "did you mean 'strict'" in row.finding


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TORCHTPU_TARGTE", "TORCHTPU_TARGET"),
        ("TORCH_TPU_TARGET", "TORCHTPU_TARGET"),
        ("TPU_MODE", "TORCHTPU_MODE"),
        ("TORCHPTU_MODE", "TORCHTPU_MODE"),
        ("torchtpu_log", "TORCHTPU_LOG"),
        ("TPU_LAUNCH_BLOCKIN", "TPU_LAUNCH_BLOCKING"),
        ("TORCH_TPU_TIER2_CACHE", "TORCH_TPU_TIER2_COMPILATION_CACHE"),
        ("TORCH_DEVICE_BACKEND_AUTO_LOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"),
    ],
)
def test_typos(monkeypatch: pytest.MonkeyPatch, name: str, meant: str) -> None:
    row = rows(monkeypatch, **{name: "1"})[name]
    assert row.status is Status.WARN
    assert f"did you mean {meant}?" in row.finding


def test_an_unknown_variable_of_ours_is_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows(monkeypatch, TORCHTPU_XYZZY="1")["TORCHTPU_XYZZY"]
    assert row.status is Status.WARN
    assert "no such setting" in row.finding


@pytest.mark.parametrize(
    "name",
    ["JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "PJRT_DEVICE", "TPU_WORKER_ID",
     "TPU_SKIP_MDS_QUERY", "TPU_LOG_DIR"],
)  # fmt: skip
def test_variables_of_others_are_noted(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert rows(monkeypatch, **{name: "1"})[name].status is Status.NOTE


def test_torchs_and_unrelated_variables_are_not_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows(monkeypatch, TORCH_LOGS="+dynamo", TORCHTPU_TEST_PART="3", HOME="/")
    assert list(found) == ["variables"]


@pytest.mark.parametrize(
    ("variables", "contradict"),
    [
        ({"TORCHTPU_MODE": "strict", "TORCH_TPU_DEFER_AND_FUSE": "1"}, True),
        ({"TORCHTPU_MODE": "fused", "TPU_DEFER_AND_FUSE": "0"}, True),
        ({"TORCH_TPU_DEFER_AND_FUSE": "1", "TPU_LAUNCH_BLOCKING": "1"}, True),
        ({"TORCH_TPU_DEFER_AND_FUSE": "0", "TPU_LAUNCH_BLOCKING": "1"}, False),
        ({"TORCHTPU_MODE": "debug", "TORCH_TPU_LAUNCH_BLOCKING": "1"}, False),
        ({"TORCHTPU_MODE": "strict", "TORCH_TPU_LAUNCH_BLOCKING": "0"}, False),
        ({"TORCHTPU_MODE": "strikt", "TORCH_TPU_LAUNCH_BLOCKING": "1"}, False),
    ],
)
def test_variables_that_contradict(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], contradict: bool
) -> None:
    row = rows(monkeypatch, **variables).get("eager mode")
    assert (row is not None and row.status is Status.WARN) == contradict


def test_of_two_names_of_a_setting_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"TORCH_TPU_LAUNCH_BLOCKING": "0", "TPU_LAUNCH_BLOCKING": "1"}
    found = rows(monkeypatch, **both)
    assert found["TORCH_TPU_LAUNCH_BLOCKING"].status is Status.OK
    assert "TORCH_TPU_LAUNCH_BLOCKING goes before" in found["TPU_LAUNCH_BLOCKING"].finding


def test_a_library_that_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows(monkeypatch, TPU_LIBRARY_PATH="/nope")["TPU_LIBRARY_PATH"].status is Status.WARN
    assert rows(monkeypatch, TPU_LIBRARY_PATH=__file__)["TPU_LIBRARY_PATH"].status is Status.OK
