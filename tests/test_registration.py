"""Registration with torch: quiet, idempotent, and all or nothing."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest
import torch

import torchtpu

TAKEN = """
import json, warnings
import torch
names = ("Generator", "set_float32_matmul_precision", "get_autocast_dtype", "to_dlpack")
before = [getattr(torch, n) for n in names] + [torch.Tensor.__dlpack__, torch.UntypedStorage.clone]
torch.utils.rename_privateuse1_backend("other")
import torchtpu
try:
    torchtpu.register()
    error = ""
except Exception as e:
    error = f"{type(e).__name__}: {e}"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from torchtpu.registration import autoload
    autoload()
after = [getattr(torch, n) for n in names] + [torch.Tensor.__dlpack__, torch.UntypedStorage.clone]
print(json.dumps([error, [str(w.message) for w in caught], hasattr(torch, "tpu"), before == after]))
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_twice_is_once() -> None:
    generator = torch.Generator
    torchtpu.register()
    assert torch.Generator is generator
    assert torch._C._get_privateuse1_backend_name() == "tpu"


def test_import_torch_registers_without_jax() -> None:
    out = run("import sys, torch; print(torch.tpu.is_available(), 'jax' in sys.modules)")
    assert out == "True False\n"


@pytest.mark.parametrize("module", ["torchtpu.dtypes", "torchtpu.eager.call"])
def test_any_module_may_come_before_torch(module: str) -> None:
    assert run(f"import {module}, torch; print(torch.tpu.is_available())") == "True\n"


def test_torchtpu_first_and_autoload_off() -> None:
    code = "import torchtpu; torchtpu.register(); import torch; print(torch.ones(2).tpu().tolist())"
    assert run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", TORCHTPU_TARGET="cpu") == "[1.0, 1.0]\n"


def test_another_owner_of_the_key() -> None:
    error, warned, has_module, untouched = json.loads(run(TAKEN, TORCH_DEVICE_BACKEND_AUTOLOAD="0"))
    assert error.startswith(
        "TpuError: [torchtpu.register] torch's device key PrivateUse1 already belongs to 'other'"
    )
    assert len(warned) == 1
    assert "uninstall one of the two" in warned[0]
    assert not has_module
    assert untouched


def test_stand_in_for_googles_package() -> None:
    import torch_tpu  # type: ignore[import-not-found]  # the stand-in, made at run time
    from torch_tpu import api

    assert api.tpu_device() == torch.device("tpu", 0)
    assert torch.ones(1, device=torch_tpu.api.tpu_device()).device.type == "tpu"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torch_tpu.nothing")
