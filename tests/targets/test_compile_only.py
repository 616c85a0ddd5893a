"""The TPU compiler without a TPU, where libtpu is installed; and what is said where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from torchtpu.targets import TargetError, compile_only

COMPILE = """
import dataclasses, json
import numpy as np
from torchtpu import executor
from torchtpu.program import ArrayType, Node, Program, Ref
from torchtpu.targets.compile_only import TpuCompiler

def product(a, b):
    return a @ b

array = ArrayType((256, 256), np.dtype(np.float32))
program = Program((array, array), (Node("product", product, (Ref(0), Ref(1)), (), 1),), (2,))
module, _ = executor.lower(program, "tpu", "default")
print(json.dumps(dataclasses.asdict(TpuCompiler("v6e:2x2").compile(module))))
"""


def test_no_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_only, "libtpu", lambda: "")
    with pytest.raises(TargetError, match=r"no libtpu: pip install 'torchtpu\[tpu\]'"):
        compile_only.TpuCompiler("v6e:2x2")


@pytest.mark.usefixtures("libtpu")
def test_says_what_a_product_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["argument_bytes"] == 2 * 256 * 256 * 4
    assert report["output_bytes"] == 256 * 256 * 4
    assert report["flops"] == pytest.approx(2 * 256**3, rel=0.01)
    assert report["code_bytes"] > 0
    assert report["seconds"] > 0
