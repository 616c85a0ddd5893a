"""OpInfos by the day in the TPU compiler, and what is known of the lowerings that it refuses.

`make tpu-compiles` compiles the programs of every lowering.
"""

from __future__ import annotations

import datetime
import json
import sys
import tomllib
from pathlib import Path

import pytest

from tests.daily import PART
from tests.lowerings import opinfo
from tests.ops.worker import Worker
from torchtpu.cli import lowerings

_PARTS = 40
_TOPOLOGY = "v6e:2x2"
_ROWS = tomllib.loads(Path(__file__).with_name("exceptions.toml").read_text()).get("tpu", [])


@pytest.mark.usefixtures("libtpu")
@pytest.mark.timeout(400)
def test_a_fortieth_compiles() -> None:
    command = [sys.executable, "-m", "tests.ops.tpu_compiles", "--worker", "--topology", _TOPOLOGY]
    worker = Worker(command, patience_s=200.0)
    refused = {}
    try:
        for name in opinfo.names()[PART % _PARTS :: _PARTS]:
            found = json.loads(worker.ask(json.dumps([name, "float32"])))
            if found["refused"] and not _is_known(found["refused"][_TOPOLOGY]):
                refused[name] = found["refused"]
    finally:
        worker.end()
    assert refused == {}


def _is_known(why: str) -> bool:
    return any(why.partition(":")[0] == row["op"] for row in _ROWS)


def test_every_refusal_has_a_reason() -> None:
    reasons = {(row["op"], dtype): row for row in _ROWS for dtype in row["dtypes"]}
    refused = {(r.overload, r.dtype) for r in lowerings.on_tpu() if r.refused}
    unknown = {r for r in refused if (_program(r[0]), r[1]) not in reasons}
    assert unknown == set()
    assert {key for key in reasons if key not in {(_program(o), d) for o, d in refused}} == set()
    for row in _ROWS:
        assert row["reason"], row
        datetime.date.fromisoformat(row["date"])


def _program(overload: str) -> str:
    return overload.removeprefix("aten::").replace(".", "_")


def test_nearly_all_compile_for_v6e() -> None:
    rows = [r for r in lowerings.on_tpu() if r.dtype == "float32"]
    assert len(rows) > 500
    assert sum(_TOPOLOGY not in r.refused for r in rows) >= 0.97 * len(rows)
