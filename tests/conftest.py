"""The compile cache of the suite: none, so that tests that count compiles count them.

TORCHTPU_TEST_CACHE=DIR keeps what tests compile in DIR, which makes a later run quicker. Tests of a
file that speaks of compiles run without it even then, but for tests of the cache itself.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator

import pytest
import torch

from torchtpu import config

_KEPT_IN = os.environ.get("TORCHTPU_TEST_CACHE", "")

os.environ.pop("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", None)
os.environ["TORCH_TPU_TIER2_COMPILATION_CACHE"] = "tests" if _KEPT_IN else "disabled"
if _KEPT_IN:
    os.environ["TORCHTPU_CACHE_DIR"] = os.path.abspath(_KEPT_IN)
for _knob in ("cache_name", "cache_dir", "cache_shared"):
    config.get(_knob)  # read now: tests change these variables for the processes that they start


@pytest.fixture(autouse=_KEPT_IN != "")
def _compiles_are_counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(request.module)
    if "compil" in source and "cache_dir" not in source.lower():
        from torchtpu.executor import Executor

        monkeypatch.setenv("TORCH_TPU_TIER2_COMPILATION_CACHE", "disabled")  # for other processes
        monkeypatch.setattr(Executor, "_place", lambda *_: None)


@pytest.fixture
def strict() -> Iterator[None]:
    """For tests of what happens op by op: fused, the default, would join them."""
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER):
        yield


@pytest.fixture
def libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the TPU compiler: that of TORCHTPU_TEST_LIBTPU, or the installed one."""
    from torchtpu.targets import compile_only

    library = os.environ.get("TORCHTPU_TEST_LIBTPU") or compile_only.libtpu()
    if not library:
        pytest.skip("needs libtpu (the extra tpu)")
    monkeypatch.setenv("TPU_LIBRARY_PATH", os.path.abspath(library))
