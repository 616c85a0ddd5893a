"""Target tpu through the PJRT C API: a plugin for the CPU loaded as libtpu is, and broken ones."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtpu.targets import plugin, tpu

ROOT = Path(__file__).parents[2]
_PACKAGE = importlib.util.find_spec("lammps_jax_pjrt_cpu")
needs_plugin = pytest.mark.skipif(_PACKAGE is None, reason="its wheels are for Linux on x86-64")
START = """
from torchtpu import targets
targets.create("tpu", targets.Settings(start_timeout_s=8))
"""
TRAIN = """
import json, sys
sys.path.insert(0, "examples")
import train_digits, torch
losses = []
for mode in torch.tpu.EagerMode:
    with torch.tpu.set_eager_mode(mode):
        losses.append(train_digits.train("conv", "tpu", steps=4, quiet=True).losses.tolist())
compiles = torch.tpu._get_cache_stats()["num_compilations"]
print(json.dumps({"losses": losses, "compiles": compiles}))
"""
# A plugin whose client is not made: it stands between the loader and the real one.
STAND_IN = """
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct {
  size_t size; void* extensions;
  size_t version_size; void* version_extensions; int major; int minor;
  void* before[10]; void* (*client_create)(void*);
} Api;
static void* create(void* arguments) {
  if (MODE == 0) abort();
  for (;;) sleep(60);
}
void* GetPjrtApi(void) {
  void* library = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
  Api* real = ((Api * (*)(void)) dlsym(library, "GetPjrtApi"))();
  Api* made = malloc(real->size);
  memcpy(made, real, real->size);
  made->client_create = create;
  return MODE == 2 ? 0 : made;
}
"""


def _library() -> Path:
    assert _PACKAGE is not None
    assert _PACKAGE.origin is not None
    return Path(_PACKAGE.origin).with_name("pjrt_c_api_cpu_plugin.so")


def _python(
    *arguments: str, library: Path | str, **variables: str
) -> subprocess.CompletedProcess[str]:
    named = {plugin.VARIABLE: f"tpu:{library}", "TORCHTPU_TARGET": "tpu"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | named | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _trained(**variables: str) -> dict[str, Any]:
    done = _python("-c", TRAIN, library=_library(), **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_plugin
def test_keeps_the_contract() -> None:
    """The suite of every target, with the plugin as one more: its own process has its own JAX."""
    suite = "tests/targets/test_contract.py"
    done = _python("-m", "pytest", "-q", "-k", "tpu", suite, library=_library())
    assert done.returncode == 0, done.stdout
    passed = int(done.stdout.splitlines()[-1].split()[0])
    assert passed >= 10, done.stdout


@needs_plugin
def test_the_first_tests_pass_on_it() -> None:
    """But for the one of another target, whose process hears JAX speak of the plugin."""
    files = ("tests/test_tiny.py", "tests/test_autograd.py", "tests/test_views.py")
    done = _python("-m", "pytest", "-q", "-k", "not simulated", *files, library=_library())
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.splitlines()[-1].split()[0]) >= 20, done.stdout


@needs_plugin
def test_trains_in_every_mode_as_target_cpu_does_and_starts_warm(tmp_path: Path) -> None:
    variables = {
        "TORCHTPU_CACHE_DIR": str(tmp_path),
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "default",
    }
    on_cpu = _trained(TORCHTPU_TARGET="cpu")
    first, second = (_trained(**variables) for _ in range(2))
    assert len(first["losses"]) == 3
    np.testing.assert_allclose(first["losses"], on_cpu["losses"], rtol=1e-3)
    assert first["compiles"] > 0
    assert second["compiles"] == 0
    assert second["losses"] == first["losses"]


def test_a_library_that_is_none(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("not a library")
    other = importlib.util.find_spec("numpy._core._multiarray_umath")
    assert other is not None
    cases = [
        (str(tmp_path / "none.so"), "cannot open"),
        (str(text), "file too short"),
        (str(other.origin), "GetPjrtApi not found"),
    ]
    for library, why in cases:
        done = _python("-c", START, library=library)
        assert done.returncode == 1, done.stderr
        last = done.stderr.splitlines()[-1]
        assert "TargetError: [tpu]" in last
        assert library in last
        assert why in last
        assert "TORCHTPU_TARGET=cpu" in last


@needs_plugin
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (0, "did not start: the process was ended by SIGABRT"),
        (1, "did not start within 8 s"),
        (2, "did not start: "),
    ],
    ids=["aborts", "blocks", "has no functions"],
)
def test_a_library_that_would_take_us_along(tmp_path: Path, mode: int, why: str) -> None:
    source, library = tmp_path / "plugin.c", tmp_path / "plugin.so"
    source.write_text(STAND_IN)
    defined = [f"-DMODE={mode}", f'-DREAL="{_library()}"']
    build = ["cc", "-shared", "-fPIC", *defined, "-o", str(library), str(source), "-ldl"]
    subprocess.run(build, check=True, capture_output=True)
    done = _python("-c", START, library=library)
    assert done.returncode == 1, done.stderr
    assert f"TargetError: [tpu] {library} {why}" in done.stderr.splitlines()[-1]


def test_the_variable_is_read_as_jax_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "tpu", "tpu:", "cuda:/a.so", "xtpu:/a.so"):
        assert plugin.named({plugin.VARIABLE: text}) == ""
    assert plugin.named({plugin.VARIABLE: "cuda:/a.so,tpu:/b.so"}) == "/b.so"
    monkeypatch.setenv(plugin.VARIABLE, "tpu:/b.so")
    assert tpu.absent() == ""


def test_jax_starts_no_libtpu_where_there_is_no_chip(tmp_path: Path) -> None:
    (tmp_path / "libtpu.so").write_text("")
    code = (
        "import torch; assert torch.ones(3, device='tpu').sum().item() == 3\n"
        "import jax; print(jax.devices()[0].platform)\n"
        "from jax._src import xla_bridge; print(xla_bridge._backend_errors)"
    )
    library = {"TORCHTPU_TARGET": "cpu", "TPU_LIBRARY_PATH": str(tmp_path / "libtpu.so")}
    environment = {n: v for n, v in os.environ.items() if n != "JAX_PLATFORMS"} | library
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("cpu\n"), done.stderr
    assert tpu.absent() in done.stdout
