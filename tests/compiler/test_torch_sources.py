"""The hash of torch's sources is torch's own, kept while no file changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import codecache

from torchtpu.cache.store import Store
from torchtpu.cache.tier import Tier
from torchtpu.compiler import torch_sources


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in torch's place, with a package inside and a folder that is none."""
    root = tmp_path / "torch"
    for folder in ("nn", "include"):
        (root / folder).mkdir(parents=True)
    for name in ("__init__.py", "nn/__init__.py", "nn/linear.py", "include/header.h"):
        (root / name).write_text("x = 1\n")
    monkeypatch.setattr(torch, "__file__", str(root / "__init__.py"))
    return root


class FakeTorchKey:
    """Stands where torch keeps its function, and counts its calls."""

    def __init__(self) -> None:
        self.computed = 0
        self.given: bytes | None = None

    def __call__(self) -> bytes:
        self.computed += 1
        return b"k" * 32

    def set(self, value: bytes) -> None:
        self.given = value


def test_the_second_process_is_given_what_the_first_computed(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process() -> FakeTorchKey:
        key = FakeTorchKey()
        monkeypatch.setattr(codecache, "torch_key", key)
        thread = torch_sources.prefetch(Tier("host", lambda: Store(tmp_path / "cache")))
        if thread is not None:
            thread.join()
        return key

    assert (process().computed, process().given) == (1, b"k" * 32)
    (package / "nn" / "linear.py").write_text("x = 2\n")
    changed = process()
    assert (changed.computed, changed.given) == (1, None)


def test_every_file_of_every_package_counts(package: Path) -> None:
    before = torch_sources._signature()
    (package / "include" / "header.h").write_text("x = 2\n")
    assert torch_sources._signature() == before  # no source of Python
    for name in ("__init__.py", "nn/linear.py", "nn/new.py"):
        (package / name).write_text("x = 22\n")
        before, after = torch_sources._signature(), before
        assert before != after


def test_torchs_function_takes_a_value() -> None:
    key: Any = codecache.torch_key
    assert callable(key.set)
    assert len(key()) == 32
