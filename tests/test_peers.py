"""The side by side with peers: their answers join the right rows in the right units."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import genz, roofline, scale_sim, table
from benchmarks.peers.published import rows as published_rows
from benchmarks.peers.published import sample
from benchmarks.peers.table import Column, JoinError
from torchtpu.perf_model.validation.rows import Row
from torchtpu.perf_model.validation.side_by_side import weight_stationary_cycles

SIZES = {"m": 2048, "k": 2048, "n": 2048, "dtype": "bf16"}
REQUESTS: dict[str, Any] = {
    "batch": 64,
    "input_tokens": 1024,
    "output_tokens": 1000,
    "decode": ["--batch", "64", "--seq", "2048", "--model", "llama2-7b", "--tensor", "4"],
    "prefill": ["--batch", "1", "--seq", "1024", "--model", "llama2-7b", "--tensor", "4"],
}


def _row(name: str, value: float, unit: str, **others: Any) -> Row:
    given: dict[str, Any] = {
        "id": name,
        "workload": name,
        "kind": "gemm",
        "metric": "gemm",
        "value": value,
        "unit": unit,
        "chip": "v6e",
        "source": "",
        "date": "",
        "trust": "A",
        "config": SIZES,
    }
    return Row(**given | others)


def _serving(name: str, chip: str) -> Row:
    where = {"kind": "serving", "metric": "output_tokens_per_s", "chip": chip, "config": REQUESTS}
    return _row(name, 500.0, "token/s/chip", **where)


def _report(*answers: dict[str, Any]) -> dict[str, Any]:
    return {"peer": "Peer", "version": "1", "command": "run", "notes": [], "rows": list(answers)}


def _answer(row: Row, seconds: float) -> dict[str, Any]:
    answer = {"id": row.id, "config": dict(row.config)}
    if row.kind == "gemm":
        return answer | {"seconds": seconds}
    return answer | {"prefill_s": 0.0, "decode_s": [seconds / row.config["output_tokens"]]}


@pytest.fixture
def known() -> dict[str, Row]:
    chosen = (
        _row("time", 40.0, "us"),
        _row("rate", 400.0, "TFLOP/s/device"),
        _serving("one device per chip", "v5e"),
        _serving("two devices per chip", "tpu7x"),
    )
    return {row.id: row for row in chosen}


def test_seconds_become_the_units_of_the_rows(known: dict[str, Row]) -> None:
    answers = (_answer(row, 2e-5 if row.kind == "gemm" else 16.0) for row in known.values())
    values = table.peer_column(_report(*answers), known).values
    assert values["time"] == pytest.approx(20.0)
    assert values["rate"] == pytest.approx(2 * 2048**3 / 2e-5 / 1e12)
    assert values["one device per chip"] == pytest.approx(64 * 1000 / 16.0 / 4)
    assert values["two devices per chip"] == pytest.approx(64 * 1000 / 16.0 / 2)


def test_answers_to_other_questions_are_refused(known: dict[str, Row]) -> None:
    strange = _answer(_row("strange", 1.0, "us"), 1.0)
    with pytest.raises(JoinError, match=r"Peer 1, strange: .* no such row.* run `run` again"):
        table.peer_column(_report(strange), known)
    other = _answer(known["time"], 1.0) | {"config": SIZES | {"m": 4096}}
    with pytest.raises(JoinError, match="4096"):
        table.peer_column(_report(other), known)


def _ours(row: Row, predicted: float | None) -> dict[str, Any]:
    answer = {"id": row.id, "published": row.value}
    if predicted is None:
        return {"rows": [], "unpredicted": [answer | {"reason": "raised"}]}
    return {"rows": [answer | {"predicted": predicted}], "unpredicted": []}


def test_our_runs_are_joined_by_oracle(known: dict[str, Row]) -> None:
    time, rate = known["time"], known["rate"]
    runs = [
        {"model": {"gemm": _ours(time, 41.0)}, "libtpu": {"gemm": _ours(time, 42.0)}},
        {"model": {"other": _ours(rate, None)}},
    ]
    model, libtpu = table.our_columns(runs, known)
    assert (model.name, libtpu.name) == ("torchtpu, model", "torchtpu, libtpu")
    assert (dict(model.values), dict(model.reasons)) == ({"time": 41.0}, {"rate": "raised"})
    assert libtpu.values == {"time": 42.0}
    stale = [{"model": {"gemm": _ours(replace(time, value=39.0), 41.0)}}]
    with pytest.raises(JoinError, match=r"time: .* has 40.0, the file has 39.0"):
        list(table.our_columns(stale, known))


def test_a_factor_on_the_time_is_found_on_times_and_rates(known: dict[str, Row]) -> None:
    chosen = list(known.values())
    twice_too_fast = Column(
        name="peer",
        values={"time": 20.0, "rate": 800.0, "one device per chip": 1000.0},
    )
    assert table.error_percent(twice_too_fast, chosen) == pytest.approx((50 + 100 + 100) / 3)
    factor = table.factor_of(twice_too_fast, chosen)
    assert factor == pytest.approx((0.0, 2.0))
    assert factor is not None
    right = table.mapped(twice_too_fast, chosen, factor)
    assert table.error_percent(right, chosen) == pytest.approx(0.0)
    assert table.error_percent(right, [known["two devices per chip"]]) is None
    assert table.factor_of(twice_too_fast, []) is None


def test_a_line_on_the_time_is_found() -> None:
    chosen = [_row(str(us), us, "us") for us in (3.0, 5.0, 21.0, 101.0)]
    peer = Column(name="peer", values={row.id: (row.value - 1) / 2 for row in chosen})
    line = table.line_of(peer, chosen)
    assert line == pytest.approx((1e-6, 2.0))
    assert line is not None
    assert table.error_percent(table.mapped(peer, chosen, line), chosen) == pytest.approx(0.0)
    assert table.line_of(peer, chosen[1:]) is None


def test_seconds_and_values_are_inverse(known: dict[str, Row]) -> None:
    for row in known.values():
        assert table.seconds_of(row, table.value_of(row, 0.125)) == pytest.approx(0.125)


def test_the_roofline_of_a_decoder_counts_weights_cache_and_flops() -> None:
    row = _serving("one device per chip", "v5e")
    parameters, bandwidth, peak = 6_738_415_616, 4 * 8.19e11, 4 * 1.97e14
    cache_bytes = 2 * 32 * 4096 * 2 * 64 * 2048
    decode_s = roofline.decode(row, REQUESTS["decode"])
    assert decode_s == pytest.approx((2 * parameters + cache_bytes) / bandwidth)
    prefill_s = roofline.prefill(row, REQUESTS["prefill"])
    assert prefill_s == pytest.approx(2 * parameters * 1024 / peak)
    assert roofline.seconds(row) == pytest.approx(64 * prefill_s + 1000 * decode_s)
    quantized = [*REQUESTS["decode"], "--quantize", "int8", "--kv-cache", "int8"]
    expected = (parameters + cache_bytes / 2) / bandwidth
    assert roofline.decode(row, quantized) == pytest.approx(expected)


def test_both_readers_of_the_published_rows_agree() -> None:
    mine = [row for kind in ("gemm", "serving") for row in published_rows(kind)]
    theirs = table.compared()
    assert {row["id"]: row["config"] for row in mine} == {i: r.config for i, r in theirs.items()}
    assert {table.group_of(row) for row in theirs.values()} == set(table.GROUPS)


@pytest.fixture
def formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        scale_sim,
        "fold_cycles",
        lambda m, side: weight_stationary_cycles(m, side, side, side, side),
    )


@pytest.mark.usefixtures("formula")
def test_scale_sim_shares_a_product_by_its_best_partition() -> None:
    one = scale_sim.cycles(1000, 512, 640, 128, 1)
    assert one == weight_stationary_cycles(1000, 512, 640, 128, 128)
    assert scale_sim.cycles(1000, 512, 640, 128, 4) == one // 4  # k is cut: 4 x 5 folds become 5
    assert scale_sim.cycles(4096, 128, 128, 128, 4) == 3 * 128 - 2 + 1024  # only rows to cut
    for parts in scale_sim.partitions(8):
        assert parts[0] * parts[1] * parts[2] == 8
        assert 1 in parts


class _Llm:
    """Steps of GenZ; refuses the batches that do not fit."""

    def prefill_moddeling(self, **asked: Any) -> dict[str, float]:
        assert (asked["batch_size"], asked["input_tokens"]) == (1, 1024)
        return {"Latency": 20.0}

    def decode_moddeling(self, **asked: Any) -> dict[str, float]:
        assert asked["parallelism_heirarchy"] == f"TP{{{asked['tensor_parallel']}}}_EP{{1}}_PP{{1}}"
        if asked["tensor_parallel"] < 4:
            raise ValueError("All params would not fit on chip. \n System: 1")
        return {"Latency": 10.0}


def test_genz_is_asked_for_chips_and_answers_in_seconds() -> None:
    row = {"id": "row", "chip": "v5e", "config": REQUESTS}
    found = genz.predict(_Llm(), None, row)
    assert (found["prefill_s"], found["decode_s"]) == (0.020, [0.010])
    refused = genz.predict(_Llm(), None, row | {"chip": "tpu7x"})  # four devices are two chips
    assert refused["reason"] == "All params would not fit on chip."
    assert "decode_s" not in refused


def test_the_table_is_written_from_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    known: dict[str, Row],
) -> None:
    monkeypatch.setattr(table, "rows", lambda: tuple(known.values()))
    slow = {"id": "two devices per chip", "config": REQUESTS, "reason": "does not fit"}
    peer = _report(_answer(known["time"], 3e-5), slow) | {"python": "3.11"}
    files = {"ours": {"model": {"gemm": _ours(known["time"], 42.0)}}, "peer": peer}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    out = tmp_path / "RESULTS.md"
    arguments = ["--ours", str(tmp_path / "ours"), "--peers", str(tmp_path / "peer")]
    monkeypatch.setattr(sys, "argv", ["table.py", *arguments, "--out", str(out)])
    table.main()
    text = out.read_text()
    assert "| 30 (-25.0 %) | 42 (+5.0 %) |" in text
    assert "two devices per chip, Peer 1: does not fit" in text
    (tmp_path / "peer").write_text(json.dumps(_report(_answer(_row("x", 1.0, "us"), 1.0))))
    with pytest.raises(SystemExit) as stopped:
        table.main()
    assert stopped.value.code == 2
    assert "no such row" in capsys.readouterr().err


def test_a_sample_is_spread_over_the_group() -> None:
    assert sample(range(16)) == range(16)
    assert list(sample(range(48))) == list(range(0, 48, 3))
