"""Ops whose result's shape depends on data: equal to CPU, with a bounded number of programs."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check


@pytest.mark.parametrize(
    "name",
    [
        *["nonzero", "nonzero_static", "masked_select", "unique", "unique_consecutive", "argwhere"],
        *["equal", "repeat_interleave", "bincount", "index_put", "__getitem__"],
    ],
)
def test_samples(name: str) -> None:
    dtype = torch.int64 if name == "bincount" else torch.float32
    assert check(name, dtype, max_samples=2)


def _compiled() -> int:
    return int(torch.tpu._get_cache_stats()["num_compilations"])


def test_the_number_of_programs_is_bounded() -> None:
    x = torch.arange(200.0)
    on_device = x.to("tpu")
    before = _compiled()
    for count in range(1, 200, 13):
        mask = x < count
        device_mask = mask.to("tpu")
        assert torch.equal(on_device[device_mask].cpu(), x[mask])
        assert torch.equal(on_device.masked_select(device_mask).cpu(), x[mask])
        assert torch.equal(device_mask.nonzero().cpu(), mask.nonzero())
    assert _compiled() - before <= 3 * (200).bit_length() + 8


def test_mask_index_in_the_middle_and_with_gradient() -> None:
    x = torch.randn(2, 3, 4, 2)
    mask = torch.rand(3, 4) > 0.5
    grads = []
    for device in ("cpu", "tpu"):
        y = x.clone().to(device).requires_grad_()
        picked = y[:, mask.to(device)]
        (picked * torch.arange(picked.numel(), device=device).view(picked.shape)).sum().backward()
        assert y.grad is not None
        grads.append((picked.detach().cpu(), y.grad.cpu()))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_mask_together_with_numbers() -> None:
    x = torch.arange(24.0).view(4, 6)
    rows, mask = torch.tensor([0, 2, 3]), torch.tensor([True, False, True, False, False, True])
    assert torch.equal(x.to("tpu")[rows.to("tpu"), mask.to("tpu")].cpu(), x[rows, mask])


@pytest.mark.parametrize("value", [5.0, torch.tensor([7.0, 8.0, 9.0])])
def test_assignment_behind_a_mask(value: float | torch.Tensor) -> None:
    x = torch.arange(6.0).view(2, 3)
    mask = torch.tensor([[True, False, True], [False, True, False]])
    y = x.to("tpu")
    x[mask] = value
    y[mask.to("tpu")] = value.to("tpu") if isinstance(value, torch.Tensor) else value
    assert torch.equal(y.cpu(), x)


def test_mask_of_the_wrong_shape_raises() -> None:
    with pytest.raises(IndexError, match="does not match the shape"):
        torch.zeros(3, device="tpu")[torch.ones(4, dtype=torch.bool, device="tpu")]


def test_nothing_and_everything() -> None:
    x = torch.arange(8.0, device="tpu")
    assert x[x < 0].shape == (0,)
    assert torch.equal(x[x >= 0].cpu(), torch.arange(8.0))
    assert torch.zeros(0, 3, device="tpu").nonzero().shape == (0, 2)
    assert torch.tensor(3.0, device="tpu").nonzero().shape == (1, 0)


def test_unique_of_rows_and_runs() -> None:
    x = torch.tensor([[2, 1], [0, 3], [2, 1], [0, 3], [0, 2]])
    expected = torch.unique(x, dim=0, return_inverse=True, return_counts=True)
    actual = torch.unique(x.to("tpu"), dim=0, return_inverse=True, return_counts=True)
    for e, a in zip(expected, actual, strict=True):
        assert torch.equal(a.cpu(), e)
    runs = torch.tensor([1, 1, 2, 2, 2, 1])
    expected = torch.unique_consecutive(runs, return_inverse=True, return_counts=True)
    actual = torch.unique_consecutive(runs.to("tpu"), return_inverse=True, return_counts=True)
    for e, a in zip(expected, actual, strict=True):
        assert torch.equal(a.cpu(), e)


def test_results_are_ordinary_tensors() -> None:
    x = torch.tensor([0, 1, 0, 2, 0, 3], device="tpu")
    places = x.nonzero()
    places.add_(1)
    assert places.is_contiguous()
    assert torch.equal((places * 2).cpu(), torch.tensor([[4], [8], [12]]))
