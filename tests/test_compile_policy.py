"""What the executor does at a miss: compiles in parallel, refuses, writes StableHLO, forgets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchtpu import config, executor, logs
from torchtpu.errors import ConfigError, TpuError
from torchtpu.executor import Executor
from torchtpu.program import ArrayType, Node, Program, Ref
from torchtpu.targets import create

pytestmark = pytest.mark.usefixtures("strict")


def _add(x: Any, amount: int) -> Any:
    return x + amount


def _program(amount: int) -> Program:
    node = Node("aten::add", _add, (Ref(0), amount), (), 1)
    return Program((ArrayType((3,), np.dtype(np.float32)),), (node,), (1,))


@pytest.fixture
def own() -> Executor:
    """An executor that remembers nothing from before, with two threads."""
    with config.override(compile_threads=2, cache_name="disabled"):
        return Executor(create("cpu"))


def test_independent_programs_compile_at_the_same_time(
    own: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=60)  # nobody passes alone
    compile_ = own.target.compile

    def meet(module: Any, outputs: Any, *ranks: Any) -> Any:
        both.wait()
        return compile_(module, outputs, *ranks)

    monkeypatch.setattr(own.target, "compile", meet)
    first, second, again = own.compile_many([_program(1), _program(2), _program(1)])
    assert first is again
    x = own.target.put(np.zeros(3, np.float32))
    assert [own.target.get(e.run([x])[0])[0] for e in (first, second)] == [1, 2]
    assert own.cache.stats.compilations == 2
    assert own.executable(_program(1)) is first


def test_a_request_waits_for_what_compiles_already(
    own: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_, begun, go = own.target.compile, threading.Event(), threading.Event()

    def slow(module: Any, outputs: Any, *ranks: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return compile_(module, outputs, *ranks)

    monkeypatch.setattr(own.target, "compile", slow)
    job = own.start(_program(1))
    assert begun.wait(60)
    assert own.start(_program(1)) is job
    assert not job.ready()
    go.set()
    assert own.executable(_program(1)) is job.take()
    own.settle()
    assert own.cache.stats.compilations == 1
    assert own._started == {}


def test_a_failed_compile_is_tried_again(own: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("no")

    with monkeypatch.context() as patch:
        patch.setattr(own.target, "compile", fail)
        job = own.start(_program(1))
        with pytest.raises(ValueError, match="no"):
            job.take()
    assert own._started == {}
    assert own.start(_program(1)).take() is own.executable(_program(1))


@pytest.fixture
def policy() -> Iterator[Executor]:
    current = executor.current()
    before = current.allow_cache, current.cache_only, current.dump_to
    torch.tpu.synchronize()
    yield current
    current.allow_cache, current.cache_only, current.dump_to = before
    torch.tpu._clear_cache()


def test_only_what_is_compiled_may_run(policy: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_place", lambda _: None)  # nothing on disk
    x = torch.ones(3, 5).to("tpu")
    y = x.sinh()
    torch.tpu._set_cache_only(True)
    assert torch.equal(x.sinh().cpu(), y.cpu())
    with pytest.raises(TpuError, match=r"\[program cache\] expected .* compiled already, got cosh"):
        x.cosh()
    torch.tpu._set_cache_only(False)
    x.cosh()


def test_without_the_cache_every_request_compiles(policy: Executor) -> None:
    x = torch.ones(3, 7).to("tpu")
    x.sinh()
    before = torch.tpu._get_cache_stats()["num_compilations"]
    torch.tpu._set_allow_cache(False)
    x.sinh()
    assert torch.tpu._get_cache_stats()["num_compilations"] == before + 1


def test_misses_are_written_as_stablehlo(
    policy: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_place", lambda _: None)
    x = torch.ones(3, 9).to("tpu")
    torch.tpu._set_dump_on_cache_miss(tmp_path / "misses")
    x.sinh(), x.sinh()
    (file,) = (tmp_path / "misses").iterdir()
    assert file.name.endswith("_sinh.mlir")
    assert "tensor<3x9xf32>" in file.read_text()
    torch.tpu._set_dump_on_cache_miss(None)
    x.cosh()
    assert len(list((tmp_path / "misses").iterdir())) == 1


def test_topics_go_to_stderr_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    level = logs.compiles.level
    try:
        with config.override(log=frozenset({"compiles"})):
            logs.start()
        logs.compiles.info("compiled %s", "mm")
        logs.recompiles.info("silent")
    finally:
        logs.compiles.setLevel(level)
        logs.compiles.handlers.clear()
    assert capsys.readouterr().err == "[torchtpu] compiled mm\n"


def test_an_unknown_topic_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTPU_LOG", "compiles,recompile")
    with pytest.raises(ConfigError, match="did you mean 'recompiles'"):
        config.KNOBS["log"].read()
    monkeypatch.setenv("TORCHTPU_LOG", "compiles, cache")
    assert config.KNOBS["log"].read() == {"compiles", "cache"}
