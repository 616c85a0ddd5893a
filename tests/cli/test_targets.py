"""`python -m torchtpu.targets`: PASS, FAIL or absent, and the exit code."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from torchtpu import config, targets
from torchtpu.cli import targets as command
from torchtpu.cli.checks import trial
from torchtpu.cli.checks.targets import explained
from torchtpu.cli.checks.trial import State, Trial
from torchtpu.targets import tpu


def test_a_target_that_works_and_one_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["cpu", "sim:v99"]) == 1
    good, bad, advice = capsys.readouterr().out.splitlines()
    assert good.split()[:2] == ["PASS", "cpu"]
    assert bad.split()[:2] == ["FAIL", "sim:v99"]
    assert "unknown chip 'v99'" in bad
    assert advice.startswith("        -> ")


def test_all_targets_as_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torchtpu.targets", "--format", "json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    found = {t["spec"]: t["state"] for t in json.loads(done.stdout)}
    assert sorted(found) == targets.names()
    assert (found["cpu"], found["sim"]) == ("PASS", "PASS")


@pytest.mark.skipif(not tpu.absent(), reason="there is a TPU here")
def test_a_tpu_that_is_not_there_fails_only_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["tpu"]) == 1
    assert capsys.readouterr().out.startswith("absent  tpu")


def trials(spec: str = "cpu", **states: State) -> list[Trial]:
    known = {"cpu": State.PASS, "sim": State.PASS, "tpu": State.ABSENT} | states
    return [
        Trial(spec=spec if n == spec.partition(":")[0] else n, state=s) for n, s in known.items()
    ]


@pytest.mark.parametrize(
    ("target", "found", "expected"),
    [
        ("", trials(), "cpu"),
        ("", trials(tpu=State.PASS), "tpu"),
        ("", trials(tpu=State.FAIL), "tpu"),
        ("sim:v5e", trials("sim:v5e"), "sim:v5e"),
        ("tpu", trials(), "tpu"),
        ("nonsense", [*trials(), Trial(spec="nonsense", state=State.FAIL)], "nonsense"),
    ],
)
def test_the_chosen_target(target: str, found: list[Trial], expected: str) -> None:
    with config.override(target=target):
        assert {t.spec for t in found} <= set(trial.specs())
        assert trial.chosen(found).spec == expected


@pytest.mark.parametrize(
    ("chosen", "found", "code"),
    [
        ("", trials(), 0),
        ("", trials(sim=State.FAIL), 1),
        ("cpu", trials(tpu=State.FAIL), 1),
        ("tpu", trials(), 1),
        ("tpu", trials(tpu=State.PASS), 0),
    ],
)
def test_exit_codes(
    chosen: str, found: list[Trial], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "in_children", lambda _specs, _limit_s: found)
    with config.override(target=chosen):
        assert command.main([]) == code


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("[tpu] it did not start: a; b; set it to cpu", ("[tpu] it did not start: a; b", "set it")),
        ("[sim] no chip, expected v2", ("[sim] no chip, expected v2", "choose another")),
        ("no answer within 1 s", ("no answer within 1 s", "try a longer --timeout")),
        ("OSError: [a] b; c", ("OSError: [a] b; c", "see versions above")),
    ],
)
def test_a_failure_and_what_to_do(reason: str, expected: tuple[str, str]) -> None:
    found, advice = explained(Trial(spec="tpu", state=State.FAIL, reason=reason))
    assert found == expected[0]
    assert advice.startswith(expected[1])


def test_wrong_numbers_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trial.attempt("cpu", 60.0).state is State.PASS
    get = type(targets.create("cpu")).get
    monkeypatch.setattr(
        "torchtpu.targets.pjrt.PjrtTarget.get", lambda self, a: np.asarray(get(self, a)) + 1
    )
    found = trial.attempt("cpu", 60.0)
    assert found.state is State.FAIL
    assert "a matrix product came out wrong: expected [140." in found.reason
