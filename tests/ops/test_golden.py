"""StableHLO of a few ops of each family, as golden text: a change of a lowering shows as a diff.

`python -m tests.ops.test_golden --update` writes the files of `golden/` anew.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from torchtpu import executor
from torchtpu.eager import modes
from torchtpu.storage import Buffer

FOLDER = Path(__file__).parent / "golden"
WRITTEN_WITH = "0.10.2"
Call = Callable[[], Any]


def _t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype).to("tpu")  # a copy: no program


def _i(*shape: int) -> torch.Tensor:
    return _t(*shape, dtype=torch.int64)


def _adamw() -> None:
    state = [_t(4, 3), _t(4, 3), _t(4, 3), _t(4, 3), _t()]
    p, g, m, v, step = ([t] for t in state)
    torch._fused_adamw_(
        p, g, m, v, [], step, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8,
        amsgrad=False, maximize=False,
    )  # fmt: skip


ATEN = torch.ops.aten
HALF = torch.bfloat16
CASES: dict[str, Call] = {
    "abs_complex": lambda: torch.abs(_t(3, dtype=torch.complex64)),
    "adamw_step": _adamw,
    "add_alpha": lambda: torch.add(_t(4, 3), _t(3), alpha=2.5),
    "addmm": lambda: torch.addmm(_t(5), _t(2, 4), _t(4, 5)),
    "arange": lambda: torch.arange(0, 10, 2, device="tpu"),
    "argmax": lambda: torch.argmax(_t(4, 3), 1),
    "attention": lambda: F.scaled_dot_product_attention(
        _t(1, 2, 8, 4), _t(1, 2, 8, 4), _t(1, 2, 8, 4), is_causal=True
    ),
    "avg_pool2d": lambda: F.avg_pool2d(_t(1, 2, 8, 8), 2),
    "batch_norm": lambda: F.batch_norm(_t(2, 3, 4, 4), _t(3), _t(3), _t(3), _t(3), training=True),
    "bernoulli": lambda: _t(4).bernoulli_(0.5),
    "bmm_bfloat16": lambda: torch.bmm(_t(2, 3, 4, dtype=HALF), _t(2, 4, 5, dtype=HALF)),
    "cat": lambda: torch.cat([_t(2, 3), _t(4, 3)]),
    "convolution": lambda: F.conv2d(_t(1, 4, 8, 8), _t(6, 2, 3, 3), _t(6), padding=1, groups=2),
    "convolution_transposed": lambda: F.conv_transpose2d(_t(1, 4, 5, 5), _t(4, 3, 3, 3), stride=2),
    "copy_cast": lambda: _t(4, 3).to(HALF),
    "cross_entropy": lambda: F.cross_entropy(_t(4, 5), _i(4)),
    "cumsum": lambda: torch.cumsum(_t(4, 5), 1),
    "div_floor": lambda: torch.div(_i(4), _i(4), rounding_mode="floor"),
    "dropout": lambda: F.dropout(_t(4, 3), 0.1),
    "embedding": lambda: F.embedding(_i(2, 3), _t(7, 4)),
    "fft": lambda: torch.fft.rfft(_t(3, 8)),
    "gather": lambda: torch.gather(_t(4, 3), 1, _i(4, 2)),
    "gelu": lambda: F.gelu(_t(4, dtype=HALF)),
    "gelu_backward": lambda: ATEN.gelu_backward(_t(4), _t(4), approximate="tanh"),
    "index_put": lambda: _t(5, 3).index_put_((_i(4),), _t(4, 3), accumulate=True),
    "layer_norm": lambda: F.layer_norm(_t(4, 6), (6,), _t(6), _t(6)),
    "max_pool2d": lambda: F.max_pool2d(_t(1, 2, 8, 8), 3, stride=2, padding=1),
    "mm": lambda: torch.mm(_t(3, 4), _t(4, 5)),
    "mse_loss": lambda: F.mse_loss(_t(4, 3), _t(4, 3)),
    "normal": lambda: _t(4).normal_(1, 2),
    "pad_reflect": lambda: F.pad(_t(1, 2, 6), (2, 1), mode="reflect"),
    "randint": lambda: torch.randint(3, 9, (4,), device="tpu"),
    "randperm": lambda: torch.randperm(8, device="tpu"),
    "scatter_add": lambda: torch.scatter_add(_t(4, 3), 1, _i(4, 2), _t(4, 2)),
    "softmax": lambda: torch.softmax(_t(4, 6, dtype=HALF), -1),
    "softmax_backward": lambda: ATEN._softmax_backward_data(_t(4, 6), _t(4, 6), 1, torch.float32),
    "sort": lambda: torch.sort(_t(4, 6), dim=0, descending=True, stable=True),
    "sum": lambda: torch.sum(_t(4, 3, 5, dtype=HALF), (0, 2), keepdim=True),
    "topk": lambda: torch.topk(_t(4, 9), 3),
    "upsample_bilinear2d": lambda: F.interpolate(_t(1, 2, 3, 3), scale_factor=2, mode="bilinear"),
    "var": lambda: torch.var(_t(4, 3), 1),
    "view_write": lambda: _t(4, 3)[1:3].mul_(2),
    "where": lambda: torch.where(_t(4, 1, dtype=torch.bool), _t(4, 3), _t(3)),
}


class Lowering(modes.Strict):
    """A mode that keeps the StableHLO of each launch and computes zeros."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def launch(self, call: Any, arrays: Sequence[Any], targets: Sequence[Buffer]) -> None:
        """Lower the program of a prepared call."""
        module, outputs = executor.lower(call.program, "cpu")
        self.texts.append(normalised(str(module)))
        for target, made in zip(targets, outputs, strict=True):
            target.array = executor.current().target.put(np.zeros(made.shape, made.dtype))


def normalised(text: str) -> str:
    """A module's text without what says nothing of the program."""
    text = re.sub(r"^module @\S+ attributes \{.*\} \{$", "module {", text, flags=re.MULTILINE)
    return re.sub(r" ?\{(jax\.result_info|mhlo\.\w+) = [^}]*\}", "", text)


def text_of(name: str) -> str:
    """Return the StableHLO of all programs that a case launches, op by op."""
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER):
        torch.tpu.synchronize()
        mode = Lowering()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(modes, "current", mode)
            CASES[name]()
    return "\n".join(mode.texts)


@pytest.mark.skipif(
    jax.__version__ != WRITTEN_WITH, reason=f"golden/ was written with jax {WRITTEN_WITH}"
)
@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    file = FOLDER / f"{name}.mlir"
    expected = file.read_text().splitlines() if file.exists() else []
    found = text_of(name).splitlines()
    diff = "\n".join(difflib.unified_diff(expected, found, "golden", "now", lineterm=""))
    assert not diff, f"{diff}\nif that is meant: python -m tests.ops.test_golden --update"


def test_no_file_is_left_over() -> None:
    assert {f.stem for f in FOLDER.glob("*.mlir")} == set(CASES)


def update() -> None:
    """Write every golden file anew."""
    FOLDER.mkdir(exist_ok=True)
    for name in CASES:
        (FOLDER / f"{name}.mlir").write_text(text_of(name))


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python -m tests.ops.test_golden --update")
    update()
