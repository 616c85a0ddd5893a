"""Reports: folding, text, JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.perf_model.jax_programs import graph, spec
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.program import Provenance
from torchtpu.perf_model.quantities import percent, rate, seconds, size
from torchtpu.perf_model.report import Report, fold, render_text, to_json
from torchtpu.perf_model.roofline import StepEstimate, estimate_step
from torchtpu.perf_model.trace import Buffer, Call, StepTrace


def estimate(gib: int = 1) -> StepEstimate:
    program = graph(lambda a, b: a @ b, spec(1024, 1024), spec(1024, 1024))
    where = Provenance(op="aten::mm", module="model.layers.0.up", source="train.py:31")
    trace = StepTrace(
        calls=(Call(graph=program, inputs=(0, 1), outputs=(2,), provenance=where),),
        live_before={
            0: Buffer(size_bytes=2**22, kind="input"),
            1: Buffer(size_bytes=gib * 2**30, kind="parameter"),
        },
        live_after=frozenset({1, 2}),
    )
    return estimate_step(trace, chips.load("v5e"))


STEP = estimate()
REPORT = Report(script="train.py", steps=(replace(STEP, hbm_bytes=1.0), STEP, STEP, STEP))


def test_equal_neighbours_fold() -> None:
    titles = [f.title for f in fold([*REPORT.steps, REPORT.steps[0]])]
    assert titles == ["step 1", "steps 2-4, same program", "step 5"]
    assert len(fold([STEP, replace(STEP, name="step 2")])) == 1


def test_text_says_what_a_user_asks() -> None:
    text = render_text(REPORT)
    for expected in (
        "train.py",
        "steps 2-4, same program: v5e, one device, fused mode",
        "aten::mm",
        "model.layers.*.up",
        "train.py:31",
        "of 15.75 GiB usable: fits",
        "197 TFLOP/s",
        "unmodelled      nothing",
    ):
        assert expected in text
    assert max(map(len, text.splitlines())) < 160


def test_text_says_by_how_much_it_does_not_fit() -> None:
    text = render_text(Report(script="big.py", steps=(estimate(gib=20),)))
    assert "DOES NOT FIT, 4.26 GiB too much" in text


def test_unmodelled_parts_are_named() -> None:
    step = replace(STEP, unmodelled=(("no cost rule for fancy", 3),), unmodelled_share=0.25)
    text = render_text(Report(script="x", steps=(step,)))
    assert "25.0 % of the time, by memory traffic only: no cost rule for fancy (x3)" in text


def test_a_report_without_steps_says_so() -> None:
    assert "no step found" in render_text(Report(script="x", steps=(), notes=("look here",)))


def test_json_is_plain_data_with_stable_keys() -> None:
    data = json.loads(json.dumps(to_json(REPORT)))
    assert set(data) == {"format", "script", "oracle", "notes", "steps"}
    assert [(s["first_step"], s["last_step"]) for s in data["steps"]] == [(1, 1), (2, 4)]
    step = data["steps"][1]
    assert set(step) == {
        *("first_step", "last_step", "name", "chip", "mode", "devices", "time_s", "matmul_flops"),
        *("mfu", "peak_flops_per_s", "achieved_flops_per_s", "attainable_flops_per_s", "hbm_bytes"),
        *("achieved_bytes_per_s", "attainable_bytes_per_s", "bound", "bound_shares", "programs"),
        *("kernels", "unmodelled_share", "unmodelled", "memory", "dearest_ops"),
        *("oracle", "remarks", "topology", "network_s", "exposed_s", "hints"),
    }
    assert step["memory"]["fits"] is True
    assert step["time_s"] == STEP.time_s
    assert step["dearest_ops"][0]["source"] == "train.py:31"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (seconds(1.5e-3), "1.5 ms"),
        (seconds(2.34567e-6), "2.35 us"),
        (seconds(0.0), "0 ns"),
        (seconds(5400), "5400 s"),
        (rate(1.153e15, "FLOP/s"), "1.153 PFLOP/s"),
        (rate(0, "B/s"), "0 B/s"),
        (size(33_543_694_581), "31.24 GiB"),
        (size(12), "12 B"),
        (size(-(2**20)), "-1.00 MiB"),
        (percent(0.4567), "45.7 %"),
    ],
)
def test_quantities(text: str, expected: str) -> None:
    assert text == expected
