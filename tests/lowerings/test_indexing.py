"""Gathers and scatters against torch's CPU, and indices that are out of range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.opinfo import check
from torchtpu.eager import modes

OPS = (
    "index_select",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "index_reduce.mean",
    "index_reduce.prod",
    "index_reduce.amax",
    "gather",
    "scatter",
    "scatter_add",
    "scatter_reduce.sum",
    "scatter_reduce.prod",
    "scatter_reduce.mean",
    "scatter_reduce.amin",
    "masked_fill",
    "masked_scatter",
    "take",
    "put",
    "take_along_dim",
    "__getitem__",
    "nn.functional.embedding",
)


@pytest.mark.parametrize("name", OPS)
def test_opinfo(name: str) -> None:
    assert check(name, max_samples=2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["index_add", "scatter_add", "scatter_reduce.prod", "index_fill"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    assert check(name, dtype, max_samples=1, backward=False)


def test_subscripts() -> None:
    x = torch.arange(120).reshape(4, 5, 6)
    rows, columns = torch.tensor([[0], [-1]]), torch.tensor([1, -2, 3])
    on_device = x.to("tpu")
    r, c = rows.to("tpu"), columns.to("tpu")
    for subscript, moved in (
        ((rows, columns), (r, c)),
        ((slice(None), rows, columns), (slice(None), r, c)),
        ((rows, slice(None), columns), (r, slice(None), c)),
        ((..., columns), (..., c)),
        ((columns, None, 2), (c, None, 2)),
    ):
        assert on_device[moved].cpu().equal(x[subscript])


def test_index_tensors_on_the_cpu() -> None:
    x, where = torch.arange(12.0).reshape(3, 4), torch.tensor([2, 0])
    moved = x.to("tpu")
    assert moved[where].cpu().equal(x[where])
    moved[:, where] = -1.0
    x[:, where] = -1.0
    assert moved.cpu().equal(x)


def test_index_put_accumulates_repeated_indices() -> None:
    x, where = torch.zeros(3), torch.tensor([0, 0, -1])
    expected = x.index_put((where,), torch.ones(3), accumulate=True)
    actual = x.to("tpu").index_put((where.to("tpu"),), torch.ones(3, device="tpu"), accumulate=True)
    assert actual.cpu().equal(expected)


def test_writes_through_a_view() -> None:
    x = torch.zeros(3, 4, device="tpu")
    x[:, 1:3].index_fill_(0, torch.tensor([0, 2], device="tpu"), 5.0)
    expected = torch.zeros(3, 4)
    expected[:, 1:3].index_fill_(0, torch.tensor([0, 2]), 5.0)
    assert x.cpu().equal(expected)


def test_embedding_gradient() -> None:
    indices = torch.tensor([[1, 2, 2], [0, 3, 1]])
    for options in ({}, {"padding_idx": 2}, {"scale_grad_by_freq": True}):
        grads = []
        for device in ("cpu", "tpu"):
            weight = torch.arange(12.0).reshape(4, 3).to(device).requires_grad_()
            F.embedding(indices.to(device), weight, **options).square().sum().backward()
            assert weight.grad is not None
            grads.append(weight.grad.cpu())
        torch.testing.assert_close(grads[1], grads[0])


def _reads_and_writes(x: torch.Tensor, index: torch.Tensor) -> dict[str, Callable[[], object]]:
    return {
        "index": lambda: x[index],
        "index_put": lambda: x.index_put((index,), x[0]),
        "gather": lambda: x.gather(0, index[:, None]),
        "scatter_add": lambda: x.scatter_add(0, index[:, None], x),
        "index_select": lambda: x.index_select(0, index),
        "embedding": lambda: F.embedding(index, x),
        "take": lambda: x.take(index * 4),
        "nll_loss": lambda: F.nll_loss(x, index),
    }


@pytest.mark.parametrize("name", _reads_and_writes(torch.zeros(1), torch.zeros(1)))
def test_debug_mode_raises_for_an_index_out_of_range(name: str) -> None:
    x, index = torch.zeros(3, 3, device="tpu"), torch.tensor([0, 5, 1], device="tpu")
    with modes.use(modes.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING):
        with pytest.raises(
            IndexError, match=r"index (5|20) is out of bounds for dimension . with size"
        ):
            _reads_and_writes(x, index)[name]()
        _reads_and_writes(x, index % 2)[name]()


def test_elsewhere_an_index_out_of_range_does_no_harm() -> None:
    x, index = torch.arange(3.0, device="tpu"), torch.tensor([0, 5], device="tpu")
    assert x[index].cpu().tolist() == [0.0, 2.0]  # the nearest element
    assert x.index_put((index,), torch.ones(2, device="tpu")).cpu().tolist() == [1.0, 1.0, 2.0]
