"""Ops without a lowering: an error that names them, or the CPU, visibly."""

from __future__ import annotations

import pytest
import torch

from torchtpu import config
from torchtpu.errors import UnsupportedOpError

add_relu = torch.ops.aten._add_relu.Tensor


def test_the_default_is_an_error_that_says_what_to_do() -> None:
    x = torch.eye(3, device="tpu")
    with pytest.raises(
        UnsupportedOpError, match=r"'aten::_add_relu\.Tensor' is not implemented for TPU"
    ) as raised:
        add_relu(x, x)
    assert "TORCHTPU_FALLBACK=warn" in str(raised.value)
    assert "test_fallback.py" in "".join(raised.value.__notes__)
    assert isinstance(raised.value, RuntimeError)
    assert (x + 1).sum().item() == 12


def test_warn_runs_on_the_cpu_and_counts() -> None:
    x = torch.eye(3, device="tpu") + 1
    before = torch.tpu._get_fallback_counts().get("aten::_add_relu.Tensor", 0)
    with config.override(fallback="warn"):
        if not before:
            with pytest.warns(
                UserWarning, match="aten::_add_relu.Tensor has no lowering.*test_fallback.py"
            ):
                add_relu(x, x)
        found = add_relu(x, x)
    torch.testing.assert_close(found.cpu(), add_relu(x.cpu(), x.cpu()))
    assert found.device.type == "tpu"
    assert torch.tpu._get_fallback_counts()["aten::_add_relu.Tensor"] > before


def test_an_out_argument_is_written_by_the_fallback() -> None:
    x, out = torch.eye(3, device="tpu") * 2, torch.empty(0, device="tpu")
    with (
        config.override(fallback="warn"),
        pytest.warns(UserWarning, match="aten::_add_relu.out has no"),
    ):
        torch.ops.aten._add_relu.out(x, x, out=out)
    torch.testing.assert_close(out.cpu(), add_relu(x.cpu(), x.cpu()))
