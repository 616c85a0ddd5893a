"""Serving runs: how long the requests of a benchmark take in slots, from a prefill and a step."""

from __future__ import annotations

from typing import Any

import pytest

from torchtpu.perf_model.facts import FactError
from torchtpu.perf_model.validation import serving
from torchtpu.perf_model.validation.rows import rows
from torchtpu.perf_model.validation.serving import Requests

FIXED: dict[str, Any] = {"batch": 4, "requests": 10, "output_tokens": 100, "decode": ["--full"]}


@pytest.mark.parametrize(
    ("lengths", "mean", "longest", "shortest"),
    [("fixed", 50, 50, 50), ("uniform", 90, 100, 80), ("exponential", 30, 100, 0)],
)
def test_answers_have_the_mean_and_the_longest_that_was_asked_for(
    lengths: str, mean: float, longest: float, shortest: float
) -> None:
    given = {"lengths": lengths, "output_tokens": mean, "longest_output": longest}
    answers = list(Requests.of(FIXED | given | {"requests": 2000}).answers())
    assert sum(answers) / len(answers) == pytest.approx(mean, rel=0.01)
    assert max(answers) == pytest.approx(longest, rel=0.02)
    assert min(answers) == pytest.approx(shortest, abs=0.5)


def test_requests_of_one_length_come_in_waves() -> None:
    assert Requests.of(FIXED).steps() == 300  # ten requests in four slots
    assert Requests.of(FIXED | {"requests": 3}).steps() == 100


def test_the_last_answers_leave_slots_idle() -> None:
    given = {"requests": 400, "lengths": "exponential", "longest_output": 1000}
    requests = Requests.of(FIXED | given)
    assert requests.steps() > requests.tokens / requests.slots
    assert requests.steps() < requests.tokens / requests.slots + 1000


def test_a_padded_batch_always_costs_a_whole_step() -> None:
    assert serving.seconds(FIXED, 0.5, [0.01]) == pytest.approx(10 * 0.5 + 300 * 0.01)


def test_a_step_of_fewer_sequences_is_cheaper_where_the_slope_is_known() -> None:
    ragged = FIXED | {"few_batch": 2, "decode_few": ["--few"]}
    assert serving.decode_points(ragged) == [["--full"], ["--few"]]
    # 4 ms and 1.5 ms per sequence: two waves of four sequences, one of two.
    total = serving.seconds(ragged, 0.0, [0.010, 0.007])
    assert total == pytest.approx(200 * 0.010 + 100 * 0.007)


def test_the_quantities_of_a_run() -> None:
    assert serving.value("decode_step", FIXED, 0.5, [0.01]) == 0.01
    between = serving.value("time_per_output_token", FIXED, 0.5, [0.01])
    assert between == pytest.approx(0.01 + 4 / 100 * 0.5)
    rate = serving.value("output_tokens_per_s", FIXED, 0.5, [0.01])
    assert rate == pytest.approx(1000 / 8.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lengths": "normal"}, "lengths: expected one of"),
        ({"lengths": "exponential", "longest_output": 150}, "expected 0 to 75"),
        ({"lengths": "uniform", "longest_output": 300}, "expected 150 to 300"),
        ({"output_tokens": 0}, "got 0"),
    ],
)
def test_lengths_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(FactError, match=message):
        Requests.of(FIXED | wrong)


def test_every_published_run_is_one_that_can_be() -> None:
    found = [row for row in rows() if row.kind == "serving"]
    assert found
    for row in found:
        assert Requests.of(row.config).steps() > 0
        assert len(serving.decode_points(row.config)) == 1 + ("few_batch" in row.config)
