"""Options and modes of torch.compile(backend="tpu")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchtpu.compiler.debug import TpuCompileDebug
from torchtpu.compiler.options import Options
from torchtpu.errors import TpuError


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "fast"}, "unknown mode 'fast'"),
        ({"options": {"num_dynamic_bucket": 2}}, "did you mean 'num_dynamic_buckets'"),
        ({"options": {"num_dynamic_buckets": 9}}, "from 1 to 8, got 9"),
        ({"options": {"bucket_size": 0}}, "positive bucket_size, got 0"),
    ],
)
def test_wrong_settings_say_what_is_right(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(TpuError, match=text):
        Options.parse(**settings)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # Inductor's imports
def test_the_default_backend_hands_tpu_graphs_over_with_their_options() -> None:
    seen: list[TpuCompileDebug] = []
    fn = torch.compile(lambda x: x + 1, options={"debug_callback": seen.append})
    assert fn(torch.ones(2, device="tpu")).tolist() == [2, 2]
    assert "stablehlo.add" in seen[0].stablehlo_inference_text


def test_debug_callback_gets_every_stage() -> None:
    seen: list[TpuCompileDebug] = []
    fn = torch.compile(
        lambda x: x.sin().sum(), backend="tpu", options={"debug_callback": seen.append}
    )
    fn(torch.ones(2, device="tpu", requires_grad=True)).backward()
    last = seen[-1]
    assert "sin" in last.pre_autograd_fx_code
    assert "aten.sin" in last.post_autograd_fx_forward_code
    assert "aten.cos" in last.post_autograd_fx_backward_code
    assert "stablehlo.sine" in last.stablehlo_forward_text
    assert "stablehlo.cosine" in last.stablehlo_backward_text
    assert len(last.compiled_executables) == 2


def test_async_compile_runs_op_by_op_until_the_program_is_there() -> None:
    fn = torch.compile(
        lambda x: (x.sin() + x.cos()).sum(), backend="tpu", options={"async_compile": True}
    )
    x = torch.ones(3, device="tpu")
    results = {round(fn(x).item(), 5) for _ in range(30)}
    assert results == {round((x.cpu().sin() + x.cpu().cos()).sum().item(), 5)}


def test_custom_module_name_names_the_program() -> None:
    seen: list[TpuCompileDebug] = []
    options: dict[str, Any] = {"custom_module_name": "encoder", "debug_callback": seen.append}
    torch.compile(lambda x: x + 1, backend="tpu", options=options)(torch.ones(2, device="tpu"))
    assert "module @jit_encoder_" in seen[0].stablehlo_inference_text
