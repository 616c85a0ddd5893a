"""The road to an executable: host, shared, compile; and what is counted on it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from torchtpu import config
from torchtpu.cache import tiers as tiers_module
from torchtpu.cache.key import Key
from torchtpu.cache.memory import ProgramCache
from torchtpu.cache.store import Store
from torchtpu.cache.tier import Tier
from torchtpu.cache.tiers import Codec, Tiers
from torchtpu.errors import ConfigError

KEY = Key((("n", "1"),))


class Process:
    """What one process has: its memory, its counts, and a compiler that tells when it is used."""

    def __init__(self, host: Path | None, shared: Path | None = None, wait_s: float = 30) -> None:
        self.memory: ProgramCache[str] = ProgramCache(8)
        self.compiled = 0
        self.tiers = Tiers(
            self.memory,
            Tier("host", (lambda: Store(host)) if host else None),
            Tier("shared", (lambda: Store(shared, shared=True)) if shared else None, 30),
            wait_s,
        )

    def codec(self) -> Codec[str]:
        return Codec(compile=self.compile, load=lambda data: data.decode(), dump=str.encode)

    def compile(self) -> str:
        self.compiled += 1
        return "code"

    def get(self, codec: Codec[str] | None = None) -> str:
        return self.tiers.get(KEY, "add", codec or self.codec())


def test_a_second_process_loads_from_the_host(tmp_path: Path) -> None:
    first, second = Process(tmp_path), Process(tmp_path)
    assert first.get() == second.get() == "code"
    assert (first.compiled, second.compiled) == (1, 0)
    assert second.memory.stats.host_hits == 1
    assert second.memory.stats.load_s > 0
    assert second.tiers.find(KEY, second.codec()) == "code"


def test_another_host_loads_from_the_shared_directory_and_keeps_it(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    Process(tmp_path / "a", shared).get()
    second = Process(tmp_path / "b", shared)
    assert second.get() == "code"
    assert second.memory.stats.shared_hits == 1
    third = Process(tmp_path / "b")
    third.get()
    assert (second.compiled, third.compiled) == (0, 0)


def test_without_tiers_every_process_compiles() -> None:
    process = Process(None)
    assert process.tiers.find(KEY, process.codec()) is None
    assert process.get() == "code"
    assert process.compiled == 1


def test_what_does_not_load_is_removed_and_compiled_again(tmp_path: Path) -> None:
    Process(tmp_path).get()

    def fail(_: bytes) -> str:
        raise RuntimeError("of another XLA")

    process = Process(tmp_path)
    codec = Codec(compile=process.compile, load=fail, dump=str.encode)
    assert process.get(codec) == "code"
    assert process.compiled == 1
    assert process.tiers.host.errors == 1
    last = Process(tmp_path)
    assert last.get() == "code"
    assert last.compiled == 0


@pytest.mark.parametrize("fails", [False, True])
def test_what_cannot_be_kept_is_counted(tmp_path: Path, fails: bool) -> None:
    def dump(_: str) -> bytes | None:
        if fails:
            raise NotImplementedError
        return None

    process = Process(tmp_path)
    codec = Codec(compile=process.compile, load=bytes.decode, dump=dump)
    assert process.get(codec) == "code"
    assert process.memory.stats.unpersistable == 1
    assert not list(tmp_path.glob("v1/*"))


def test_a_failed_compile_frees_the_lock(tmp_path: Path) -> None:
    def fail() -> str:
        raise ValueError("no such op")

    process = Process(tmp_path)
    with pytest.raises(ValueError, match="no such op"):
        process.get(Codec(compile=fail, load=bytes.decode, dump=str.encode))
    assert process.get() == "code"
    assert process.compiled == 1


def test_of_processes_that_start_at_once_one_compiles(tmp_path: Path) -> None:
    processes = [Process(tmp_path) for _ in range(8)]
    threads = [threading.Thread(target=p.get) for p in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(p.compiled for p in processes) == 1


def test_waiting_ends(tmp_path: Path) -> None:
    first, second = Process(tmp_path), Process(tmp_path, wait_s=0.01)

    def compile_() -> str:
        assert second.get() == "code"  # while the first holds the lock
        return first.compile()

    first.get(Codec(compile=compile_, load=bytes.decode, dump=str.encode))
    assert (first.compiled, second.compiled) == (1, 1)


def test_the_settings_choose_the_tiers(tmp_path: Path) -> None:
    memory: ProgramCache[str] = ProgramCache(8)
    codec = Codec(compile=lambda: "code", load=bytes.decode, dump=str.encode)
    host, shared = str(tmp_path / "host"), str(tmp_path / "shared")
    with config.override(cache_dir=host, cache_name="disabled", cache_shared=""):
        tiers_module.configured(memory).get(KEY, "add", codec)
    assert not list(tmp_path.iterdir())
    with config.override(cache_dir=host, cache_name="mine", cache_shared=shared):
        tiers_module.configured(memory).get(KEY, "add", codec)
    assert {p.parent.parent.relative_to(tmp_path) for p in tmp_path.rglob("*.exe")} == {
        Path("host/mine"),
        Path("shared"),
    }


def test_a_name_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("../x", "a/b", "", "."):
        monkeypatch.setenv("TORCH_TPU_TIER2_COMPILATION_CACHE", text)
        with pytest.raises(ConfigError, match="TIER2"):
            config.KNOBS["cache_name"].read()
