"""torchtpu-perf estimate as a user runs it: steps, dearest ops, one message per error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GIB = 2**30

INFERENCE = """
import sys, torch
print("this goes to stderr")
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU()).to("tpu").eval()
x = torch.randn(32, 64).to("tpu")
with torch.no_grad():
    for _ in range(int(sys.argv[1])):
        model(x)
"""
ACCUMULATION = """
import torch
model = torch.nn.Linear(8, 8, device="tpu")
optimizer = torch.optim.AdamW(model.parameters())
x = torch.ones(4, 8, device="tpu")
for step in range(3):
    for _ in range(2):
        model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model(x)
    if model.weight.sum().item() != 0.0:
        raise RuntimeError("abstract values read as zeros")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `torchtpu-perf estimate`."""
    command = [sys.executable, "-m", "torchtpu.cli.perf", "estimate", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def report(*arguments: str) -> dict[str, Any]:
    """The JSON report of a run that succeeds."""
    done = run("--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def test_a_training_script_is_cut_at_optimizer_steps() -> None:
    found = report("--chip", "v6e", "--steps", "3", "examples/train_digits.py", "--model", "conv")
    steps = found["steps"]
    assert [s["last_step"] for s in steps] == [1, 3]  # the optimizer's state is made in the first
    last = steps[-1]
    assert last["time_s"] > 0
    assert {op["module"] for op in last["dearest_ops"]} >= {"ConvNet.conv2"}
    assert all(op["source"].startswith("train_digits.py:") for op in last["dearest_ops"])
    assert last["unmodelled_share"] == 0


def test_a_script_without_optimizer_is_cut_at_module_calls(tmp_path: Path) -> None:
    path = script(tmp_path, INFERENCE)
    done = run("--chip", "v5e", "--format", "json", path, "3")
    assert "this goes to stderr" in done.stderr
    (step,) = json.loads(done.stdout)["steps"]
    assert (step["first_step"], step["last_step"]) == (1, 3)
    assert step["matmul_flops"] == 2 * 32 * 64 * 128


def test_accumulation_is_one_step_and_evaluation_its_own(tmp_path: Path) -> None:
    found = report("--steps", "6", script(tmp_path, ACCUMULATION))
    flops = [
        s["matmul_flops"]
        for s in found["steps"]
        for _ in range(s["first_step"], s["last_step"] + 1)
    ]
    product = 2 * 4 * 8 * 8
    assert flops == [4 * product, product] * 3  # two forwards, two weight gradients
    assert any("zeros: script.py:" in note for note in found["notes"])


def test_a_model_that_fits_no_chip_here_is_estimated_and_does_not_fit() -> None:
    found = report("--chip", "v5e", "--steps", "1", "examples/llama3_8b.py")
    (step,) = found["steps"]
    assert step["memory"]["fits"] is False
    assert 16 * 3.5 * GIB < step["memory"]["peak_bytes"] < 16 * 4.5 * GIB  # 8e9 x (2+2+4) bytes
    assert {"Llama.blocks.*.mlp.down", "Llama.blocks.*.mlp.up"} <= {
        op["module"] for op in step["dearest_ops"]
    }


@pytest.mark.parametrize(
    ("arguments", "text", "expected"),
    [
        (["--chip", "v5x"], INFERENCE, "unknown chip 'v5x' (did you mean v5"),
        ([], "import torch\nx = torch.ones(2, device='tpu')\nx @ torch.ones(3, device='tpu')\n",
         "the script raised at script.py:3: RuntimeError: "),
        ([], "print('no device')\n", "launched nothing on device tpu"),
        ([], "raise SystemExit(3)\n", "exited with 3"),
        (["--steps", "0"], "", "--steps expected at least 1, got 0"),
    ],
    ids=["chip", "raises", "nothing", "exits", "steps"],
)  # fmt: skip
def test_each_error_is_one_message_and_exit_code_2(
    tmp_path: Path, arguments: list[str], text: str, expected: str
) -> None:
    done = run(*arguments, script(tmp_path, text), *(["1"] if text == INFERENCE else []))
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_missing_script_is_named() -> None:
    done = run("nowhere.py")
    assert (done.returncode, done.stderr) == (2, "[estimate] no such script: nowhere.py\n")


def test_options_may_follow_the_script(tmp_path: Path) -> None:
    path = script(tmp_path, INFERENCE)
    (step,) = report(path, "2", "--chip", "v5e")["steps"]
    assert step["chip"] == "v5e"
    assert (step["first_step"], step["last_step"]) == (1, 2)


def test_a_loop_without_steps_is_one_and_what_it_reads_is_computed(tmp_path: Path) -> None:
    text = "import torch\na = torch.ones(64, 64, device='tpu')\n"
    text += "for _ in range(3): (a @ a).sum().item()\n"
    (step,) = report(script(tmp_path, text))["steps"]
    assert step["matmul_flops"] == 3 * 2 * 64**3


DECODING = """
import sys, torch
assert sys.argv[1:] == ["--steps", "nine"], sys.argv
model = torch.nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16, device="tpu").eval()
with torch.no_grad():
    model(torch.ones(1, 4096, dtype=torch.bfloat16, device="tpu"))
"""


def test_what_follows_two_dashes_is_the_scripts_and_a_batch_of_one_gets_a_hint(
    tmp_path: Path,
) -> None:
    (step,) = report(script(tmp_path, DECODING), "--", "--steps", "nine")["steps"]
    assert any("pad the batch" in hint["hint"] for hint in step["hints"])


def test_no_script_is_one_message() -> None:
    done = run("--chip", "v6e")
    assert done.returncode == 2
    assert done.stderr.startswith("torchtpu-perf estimate: expected a script")
