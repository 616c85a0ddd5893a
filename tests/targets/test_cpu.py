"""What a kept executable of target cpu depends on: this kind of processor."""

from __future__ import annotations

import io
from typing import Any

import pytest

from torchtpu import targets
from torchtpu.targets import cpu

CPUINFO = """\
processor : 0
vendor_id : AuthenticAMD
model name : AMD EPYC
cpu MHz : 2596.1
flags : fpu sse2 avx2 avx512f

processor : 1
vendor_id : AuthenticAMD
model name : AMD EPYC
flags : fpu sse2 avx2 avx512f
"""


def host_of(monkeypatch: pytest.MonkeyPatch, text: str) -> dict[str, str]:
    """What the key says of a machine with this /proc/cpuinfo."""
    monkeypatch.setattr(cpu, "open", lambda _: io.StringIO(text), raising=False)
    return dict(cpu._host.__wrapped__())


@pytest.mark.parametrize(
    ("old", "new"),
    [(" avx512f", ""), ("AuthenticAMD", "GenuineIntel"), ("AMD EPYC", "AMD EPYC 2")],
)
def test_another_processor_is_another_key(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    here = host_of(monkeypatch, CPUINFO)["host cpu"]
    assert host_of(monkeypatch, CPUINFO.replace(old, new))["host cpu"] != here


def test_clocks_and_further_processors_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    here = host_of(monkeypatch, CPUINFO)
    assert host_of(monkeypatch, CPUINFO.replace("2596.1", "1200.0")) == here
    assert host_of(monkeypatch, CPUINFO.partition("\n\n")[0]) == here


def test_the_number_of_cores_is_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_cores", lambda: 96)
    assert host_of(monkeypatch, CPUINFO)["host cores"] == "96"


def test_a_machine_that_tells_nothing_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(cpu, "open", refuse, raising=False)
    assert dict(cpu._host.__wrapped__())["host cpu"]


def test_the_identity_names_device_options_and_host() -> None:
    identity = targets.create("cpu").identity()
    assert identity is not None
    assert {"platform", "device", "compile options", "host cpu", "host cores"} <= set(
        dict(identity)
    )
    simulated = targets.create("sim:v5e").identity()
    assert simulated is not None
    assert set(simulated) - set(identity) == {("target", "sim")}
    assert targets.create("sim:v5e", targets.Settings(numerics=False)).identity() is None
