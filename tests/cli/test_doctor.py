"""`torchtpu-doctor`: sections, exit codes, and that nothing it looks at can end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchtpu.cli import doctor
from torchtpu.cli.checks import versions
from torchtpu.cli.checks.row import Row, Status, fail, ok, warn

SECTIONS = ["versions", "device key", "targets", "cache", "environment"]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchtpu.cli.doctor", *arguments]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)


def statuses(sections: Any, title: str) -> dict[str, str]:
    return {row["what"]: row["status"] for row in sections[title]}


def test_all_works_on_cpu_and_sim() -> None:
    done = run("--json", TORCHTPU_TARGET="sim:v5e", TORCHTPU_MODE="strict", TORCHTPU_TARGTE="cpu")
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert (found["fail"], list(found["sections"])) == (0, SECTIONS)
    tried = statuses(found["sections"], "targets")
    assert (tried["cpu"], tried["sim:v5e"], tried['device "tpu"']) == ("ok", "ok", "ok")
    assert statuses(found["sections"], "device key")["PrivateUse1"] == "ok"
    assert "strict mode" in done.stdout
    assert statuses(found["sections"], "environment")["TORCHTPU_TARGTE"] == "warn"


def test_a_broken_target_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib/__init__.py").write_text("import os; os.abort()")
    done = run(PYTHONPATH=str(tmp_path), TORCHTPU_TARGET="nonsense")
    assert done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line for line in lines if line in SECTIONS] == SECTIONS
    failed = "\n".join(line for line in lines if line.startswith("  fail"))
    assert "cpu: does not work: the process was ended by SIGABRT" in failed
    assert "sim: does not work: the process was ended by SIGABRT" in failed
    assert "unknown target 'nonsense'" in failed
    assert any(line.startswith("        -> known ones: cpu, sim") for line in lines)
    assert "PrivateUse1: torchtpu, as device 'tpu'" in done.stdout
    assert lines[-1].startswith("fail: 4")


def test_a_section_that_breaks_or_blocks_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(title: str, _limit_s: float) -> list[Row]:
        if title == "broken":
            raise OSError("no such disk")
        time.sleep(60 if title == "blocked" else 0)
        return [ok(title, "well")]

    def module(name: str) -> Any:
        return SimpleNamespace(rows=lambda limit_s: rows(name.rpartition(".")[2], limit_s))

    monkeypatch.setattr(doctor, "_SECTIONS", {n: n for n in ("broken", "blocked", "good")})
    monkeypatch.setattr(doctor, "_LONGER_S", 0.0)
    monkeypatch.setattr(doctor, "import_module", module)
    found = doctor.examine(0.2)
    assert [rows[0].status for rows in found.values()] == [Status.FAIL, Status.FAIL, Status.OK]
    assert found["broken"][0].finding == "OSError: no such disk"
    assert "no answer within 0.2 s" in found["blocked"][0].finding


@pytest.mark.parametrize(
    ("row", "code", "last"),
    [
        (ok("a", "well"), 0, 'All works: use device="tpu".'),
        (warn("a", "odd", "mend it"), 0, 'All works: use device="tpu". warn: 1, see above.'),
        (fail("a", "bad", "mend it"), 1, "fail: 1, warn: 0. Begin with the first fail above."),
    ],
)
def test_exit_code_and_text(
    row: Row, code: int, last: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda _limit_s: {"section": [row]})
    assert doctor.main([]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["section", f"  {row.status:4}  a: {row.finding}"]
    assert lines[2:-2] == (["        -> mend it"] if row.advice else [])
    assert lines[-1] == last


def test_a_bad_finding_without_advice_is_an_error() -> None:
    with pytest.raises(ValueError, match="what to do"):
        warn("a", "odd", "")


def test_the_command_itself_imports_neither_torch_nor_jax() -> None:
    script = (
        "import sys; from torchtpu.cli import doctor\n"
        "from torchtpu.cli.checks import cache, device_key, environment, targets, versions\n"
        "assert not {'torch', 'jax', 'jaxlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert versions.rows(0)
