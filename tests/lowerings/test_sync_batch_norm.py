"""The parts of synchronized batch normalization: joined, they are batch normalization."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.lowerings.pairs import close, compare

aten = torch.ops.aten


def _inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 4, 3), torch.rand(4) + 0.5, torch.randn(4), torch.randn(4)]


def _by_parts(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running: torch.Tensor,
    equal: bool = False,
) -> list[torch.Tensor]:
    """Two devices' worth of rows, normalized together."""
    halves = (x[:3], x[3:]) if equal else (x[:2], x[2:])
    running_mean, running_var = running, running.abs() + 1
    means, stds = zip(*(aten.batch_norm_stats(h, 1e-5) for h in halves), strict=True)
    parts = (x, torch.stack(means), torch.stack(stds), running_mean, running_var, 0.1, 1e-5)
    if equal:
        mean, invstd = aten.batch_norm_gather_stats(*parts, 9)
    else:
        counts = torch.tensor([6.0, 12.0], device=x.device)
        mean, invstd = aten.batch_norm_gather_stats_with_counts(*parts, counts)
    out = aten.batch_norm_elemt(x, weight, bias, mean, invstd, 1e-5)
    return [out, mean, invstd, running_mean, running_var]


def _whole(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, running: torch.Tensor
) -> list[torch.Tensor]:
    running_mean, running_var = running, running.abs() + 1
    made = torch.native_batch_norm(x, weight, bias, running_mean, running_var, True, 0.1, 1e-5)
    return [*made, running_mean, running_var]


@pytest.mark.parametrize("equal", [False, True])
def test_forward(equal: bool) -> None:
    compare(partial(_by_parts, equal=equal), _whole, *_inputs())


def test_backward() -> None:
    x, weight, grad = _inputs()[0], _inputs()[1], torch.randn(6, 4, 3)
    _, mean, invstd = torch.native_batch_norm(x, weight, None, None, None, True, 0.1, 1e-5)
    mask = [True, True, True]
    expected = aten.native_batch_norm_backward(
        grad, x, weight, None, None, mean, invstd, True, 1e-5, mask
    )
    grad, x, weight, mean, invstd = (t.to("tpu") for t in (grad, x, weight, mean, invstd))
    parts = [
        aten.batch_norm_backward_reduce(g, h, mean, invstd, weight, *mask)
        for g, h in ((grad[:2], x[:2]), (grad[2:], x[2:]))
    ]
    sums = [a + b for a, b in zip(*parts, strict=True)]
    counts = torch.tensor([6, 12], dtype=torch.int32, device="tpu")
    of_x = aten.batch_norm_backward_elemt(grad, x, mean, invstd, weight, *sums[:2], counts)
    close([of_x, *sums[2:]], expected, 1e-4)
    assert aten.batch_norm_backward_reduce(
        grad, x, mean, invstd, weight, False, True, False
    )[0] is None  # fmt: skip


def test_statistics_of_half_precision_are_float32() -> None:
    x = _inputs()[0].bfloat16().to("tpu")
    mean, invstd = aten.batch_norm_stats(x, 1e-5)
    assert mean.dtype == invstd.dtype == torch.float32
    torch.testing.assert_close(mean.cpu(), x.cpu().float().mean((0, 2)))


def test_update_stats() -> None:
    def fn(x: torch.Tensor, mean: torch.Tensor) -> list[torch.Tensor]:
        var = mean.abs()
        return [*aten.batch_norm_update_stats(x, mean, var, 0.3), mean, var]

    x, _, _, running = _inputs()
    compare(fn, None, x, running)
