"""What goes wrong is an exception with the op, the line and what to do; the next op works."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtpu import config
from torchtpu.errors import ConfigError, TpuError, UnsupportedOpError, did_you_mean
from torchtpu.targets import TargetError, create

WRONG_ENVIRONMENT = """
import torch
for _ in range(2):
    try:
        torch.ones(2, device="tpu")
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "), error.__notes__[0])
print((torch.ones(2) + 1).tolist())
"""
SIMULATED = """
import torch
kept = []
try:
    for _ in range(40):
        kept.append(torch.empty(1 << 30, device="tpu"))
except torch.OutOfMemoryError as error:
    print(str(error).replace(chr(10), " | "), error.__notes__[0])
kept.clear()
print((torch.ones(2, device="tpu") + 1).shape, torch.tpu.max_memory_allocated() <= 16 << 30)
"""


@pytest.fixture(autouse=True)
def _device_survives() -> Iterator[None]:
    yield
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]


def ones(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


LIKE_CPU: dict[str, Callable[[str], Any]] = {
    "broadcast": lambda d: ones(d, 2) + ones(d, 3),
    "broadcast in place": lambda d: ones(d, 2).add_(ones(d, 3)),
    "mm shapes": lambda d: ones(d, 2, 3) @ ones(d, 2, 3),
    "mm dtypes": lambda d: ones(d, 2, 2) @ ones(d, 2, 2, dtype=torch.int64),
    "bmm shapes": lambda d: torch.bmm(ones(d, 2, 3, 4), ones(d, 2, 3, 4)),
    "cat": lambda d: torch.cat([ones(d, 2, 3), ones(d, 2, 2)]),
    "conv channels": lambda d: nn.functional.conv2d(ones(d, 1, 3, 4, 4), ones(d, 2, 2, 3, 3)),
    "softmax dim": lambda d: torch.softmax(ones(d, 2), 3),
    "sum dim": lambda d: ones(d, 2).sum(4),
    "max of nothing": lambda d: ones(d, 0, 3).max(),
    "embedding dtype": lambda d: nn.functional.embedding(ones(d, 2), ones(d, 2, 2)),
    "integer division in place": lambda d: ones(d, 2, dtype=torch.int32).div_(2),
    "float into integer": lambda d: ones(d, 2, dtype=torch.int32).add_(1.5),
    "out= dtype": lambda d: torch.add(ones(d, 3), 1, out=ones(d, 3, dtype=torch.int32)),
    "bool minus bool": lambda d: ones(d, 2, dtype=torch.bool) - ones(d, 2, dtype=torch.bool),
    "reshape": lambda d: ones(d, 6).reshape(4, 2),
    "negative size": lambda d: torch.empty(-1, device=d),
    "permute": lambda d: ones(d, 2, 3).permute(0, 0),
    "linear": lambda d: nn.functional.linear(ones(d, 2, 3), ones(d, 2, 4)),
}


@pytest.mark.parametrize("name", LIKE_CPU)
def test_wrong_arguments_read_as_on_cpu(name: str) -> None:
    with pytest.raises(Exception, match=r".") as theirs:
        LIKE_CPU[name]("cpu")
    with pytest.raises(type(theirs.value)) as ours:
        LIKE_CPU[name]("tpu")
    assert str(ours.value) == str(theirs.value)


MIXED: dict[str, Callable[[], Any]] = {
    "add": lambda: ones("tpu", 2) + ones("cpu", 2),
    "add the other way": lambda: ones("cpu", 2) + ones("tpu", 2),
    "add_": lambda: ones("cpu", 2).add_(ones("tpu", 2)),
    "mm": lambda: ones("tpu", 2, 2) @ ones("cpu", 2, 2),
    "cat": lambda: torch.cat([ones("tpu", 2), ones("cpu", 2)]),
    "linear": lambda: nn.Linear(2, 2)(ones("tpu", 2)),
    "where": lambda: torch.where(ones("tpu", 2) > 0, ones("cpu", 2), 0.0),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices(name: str) -> None:
    with pytest.raises(
        RuntimeError, match=r"(?s)Expected all tensors to be on the same device.*tpu:0 and cpu!"
    ) as e:
        MIXED[name]()
    assert "Move it with .to('tpu')" in str(e.value)


def test_numbers_on_the_host_mix() -> None:
    assert (ones("tpu", 2) * torch.tensor(3.0)).tolist() == [3, 3]


def test_unsupported_op() -> None:
    with pytest.raises(
        UnsupportedOpError, match=r"is not implemented for TPU\. Please file a feature request"
    ) as e:
        ones("tpu", 2).to_mkldnn()
    assert "TORCHTPU_FALLBACK=warn" in str(e.value)
    assert isinstance(e.value, NotImplementedError)


def test_notes_carry_the_op_and_the_line() -> None:
    with pytest.raises(RuntimeError) as e:
        ones("tpu", 2) + ones("tpu", 3)
    line = e.traceback[0].lineno + 1
    assert e.value.__notes__ == [
        f"[torchtpu] in aten::add.Tensor, called from {Path(__file__).name}:{line}"
    ]


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(
        TargetError,
        match=r"unknown target 'simm'; known ones: cpu, sim, tpu \(did you mean 'sim'\?\)",
    ):
        create("simm")
    with pytest.raises(TargetError, match=r"unknown chip 'v6f' \(did you mean v6e\?\)"):
        create("sim:v6f")
    with pytest.raises(ConfigError, match=r"unknown knob 'mod'.*did you mean 'mode'"):
        config.get("mod")
    assert did_you_mean("zzz", ["b", "a"]) == "known ones: a, b"


def test_no_memory_left_is_an_exception() -> None:
    with pytest.raises(RuntimeError, match="Out of memory allocating"):
        torch.empty(1 << 45, device="tpu") + 1


def run(code: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_out_of_simulated_hbm() -> None:
    error, after = run(SIMULATED, TORCHTPU_TARGET="sim:v5e")
    assert error.startswith(
        "[sim v5e] out of HBM: requested 4.00 GiB, in use 12.00 GiB of 15.75 GiB usable"
    )
    assert "a smaller batch, activation checkpointing or a chip with more HBM may fit" in error
    assert "|   3 x float32 [1073741824] = 12.00 GiB, made at <string>:6" in error
    assert error.endswith("[torchtpu] in aten::empty.memory_format, called from <string>:6")
    assert after == "torch.Size([2]) True"


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TORCHTPU_TARGET", "tpu", "TargetError [tpu] no TPU: "),
        (
            "TORCHTPU_MODE",
            "quick",
            "ConfigError [TORCHTPU_MODE] unknown value 'quick'; known ones: debug, ",
        ),
    ],
)
def test_wrong_environment(variable: str, value: str, expected: str) -> None:
    if value == "tpu" and not _no_tpu():
        pytest.skip("this machine has a TPU")
    start = time.perf_counter()
    lines = run(WRONG_ENVIRONMENT, **({"TORCHTPU_TARGET": "cpu"} | {variable: value}))
    assert time.perf_counter() - start < 30  # of which torch itself takes some seconds to import
    assert lines[0] == lines[1]
    assert lines[0].startswith(expected)
    assert lines[0].endswith("[torchtpu] in the first use of device tpu, called from <string>:5")
    assert lines[2] == "[2.0, 2.0]"


def test_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTPU_CACHE_ENTRIES", "many")
    with pytest.raises(ConfigError, match=r"\[TORCHTPU_CACHE_ENTRIES\] .* integer, got 'many'"):
        config.KNOBS["cache_entries"].read()


def _no_tpu() -> bool:
    from torchtpu.targets import tpu

    return bool(tpu.absent())


def test_errors_are_runtime_errors() -> None:
    assert issubclass(TpuError, RuntimeError)
    assert issubclass(ConfigError, ValueError)
