"""torch.autocast("tpu"): bfloat16 by default in every thread, by torch's own lists."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

BF16, F32 = torch.bfloat16, torch.float32


def ones(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.ones(shape, dtype=dtype, device="tpu")


def attention() -> Tensor:
    x = ones(1, 1, 2, 4)
    return nn.functional.scaled_dot_product_attention(x, x, x)


CASES: dict[str, tuple[Callable[[], Tensor], torch.dtype]] = {
    "mm": (lambda: ones(2, 2) @ ones(2, 2), BF16),
    "linear": (lambda: nn.functional.linear(ones(2, 2), ones(2, 2), ones(2)), BF16),
    "conv2d": (lambda: nn.functional.conv2d(ones(1, 1, 3, 3), ones(1, 1, 2, 2)), BF16),
    "attention": (
        attention,
        BF16,
    ),
    "float64 is left alone": (
        lambda: ones(2, 2, dtype=torch.float64) @ ones(2, 2, dtype=torch.float64),
        torch.float64,
    ),
    "softmax": (lambda: torch.softmax(ones(2, 2, dtype=BF16), -1), F32),
    "layer_norm": (lambda: nn.functional.layer_norm(ones(2, 2, dtype=BF16), (2,)), F32),
    "cross_entropy": (
        lambda: nn.functional.cross_entropy(ones(2, 2, dtype=BF16), ones(2).long()),
        F32,
    ),
    "sum": (lambda: ones(2, 2, dtype=BF16).sum(), F32),
    "widest": (lambda: torch.cat([ones(2), ones(2, dtype=BF16)]), F32),
    "the rest follows its inputs": (lambda: ones(2, dtype=BF16) * 2, BF16),
}


@pytest.mark.parametrize("name", CASES)
def test_dtype(name: str) -> None:
    fn, expected = CASES[name]
    with torch.autocast("tpu"):
        assert fn().dtype == expected
        with torch.autocast("tpu", enabled=False):
            assert (ones(2, 2) @ ones(2, 2)).dtype == F32


def test_every_thread_starts_at_bfloat16() -> None:
    found: list[torch.dtype] = []

    def work() -> None:
        found.append(torch.get_autocast_dtype("tpu"))
        with torch.autocast("tpu"):
            found.append((ones(2, 2) @ ones(2, 2)).dtype)
        with torch.autocast("tpu", dtype=torch.float16):
            found.append((ones(2, 2) @ ones(2, 2)).dtype)
        torch.set_autocast_dtype("tpu", torch.float16)
        found.append(torch.get_autocast_dtype("tpu"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [BF16, BF16, torch.float16, torch.float16]
    assert torch.get_autocast_dtype("tpu") == BF16


def test_training_keeps_float32_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)).to("tpu")
    with torch.autocast("tpu"):
        loss = nn.functional.mse_loss(model(ones(3, 4)), torch.zeros(3, 2, device="tpu"))
    loss.backward()
    assert {p.dtype for p in model.parameters()} == {F32}
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {F32}


def test_grad_scaler() -> None:
    model = nn.Linear(3, 2).to("tpu")
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 0.1),
        torch.amp.GradScaler("tpu", init_scale=8.0),
    )
    before = model.weight.tolist()
    scaler.scale(model(ones(2, 3)).sum()).backward()
    scaler.unscale_(optimizer)
    assert model.bias.grad is not None
    assert model.bias.grad.tolist() == [2, 2]
    scaler.step(optimizer)
    scaler.update()
    assert model.weight.tolist() != before
    scaler.scale(model(ones(2, 3) * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4
