"""Copies to the host, and splits at places that a device tensor names."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_to_the_host_without_waiting(dtype: torch.dtype) -> None:
    x = torch.arange(6.0, device="tpu").view(2, 3).t().requires_grad_()
    there = x.to("cpu", dtype, non_blocking=True)  # once asked for an allocator of pinned memory
    assert (there.device.type, there.dtype, there.stride()) == ("cpu", dtype, (1, 3))
    there.float().square().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu())


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_split_at_places_in_a_tensor(device: str) -> None:
    x = torch.arange(6.0, device="tpu", requires_grad=True)
    parts = torch.tensor_split(x, torch.tensor([2, 5], device=device))
    assert [p.tolist() for p in parts] == [[0, 1], [2, 3, 4], [5]]
    halves = torch.tensor_split(x, torch.tensor(2, device=device))
    (parts[1].sum() * 2 + halves[0].sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 3, 2, 2, 0]
    with torch.no_grad():
        assert torch.tensor_split(x, torch.tensor([2], device=device))[0]._base is x


def test_split_wants_whole_numbers() -> None:
    with pytest.raises(RuntimeError, match="to have dtype of long, but got Float"):
        torch.tensor_split(torch.ones(3, device="tpu"), torch.tensor([1.0], device="tpu"))


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "rand_like"])
@pytest.mark.parametrize("device", ["cpu", "meta", "tpu"])
def test_like_a_tensor_on_another_device(name: str, device: str) -> None:
    for x in (torch.full((4096,), 7.0), torch.full((4096,), 7.0, device="tpu")):
        made = getattr(torch, name)(x, device=device)
        assert made.device.type == device
        if device != "meta":
            assert made.cpu().max() <= 1
            assert made.cpu().min() >= (name == "ones_like")
