"""The parts of synchronized batch normalization: joined, they are batch normalization."""

from __future__ import annotations

import torch

from tests.lowerings.pairs import compare

aten = torch.ops.aten


def _by_parts(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, running: torch.Tensor
) -> list[torch.Tensor]:
    """Two devices' worth of rows, normalized together."""
    running_mean, running_var = running, running.abs() + 1
    means, stds = zip(*(aten.batch_norm_stats(h, 1e-5) for h in (x[:2], x[2:])), strict=True)
    counts = torch.tensor([6.0, 12.0], device=x.device)
    mean, invstd = aten.batch_norm_gather_stats_with_counts(
        x, torch.stack(means), torch.stack(stds), running_mean, running_var, 0.1, 1e-5, counts
    )
    out = aten.batch_norm_elemt(x, weight, bias, mean, invstd, 1e-5)
    return [out, mean, invstd, running_mean, running_var]


def _whole(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, running: torch.Tensor
) -> list[torch.Tensor]:
    running_mean, running_var = running, running.abs() + 1
    made = torch.native_batch_norm(x, weight, bias, running_mean, running_var, True, 0.1, 1e-5)
    return [*made, running_mean, running_var]


def test_forward() -> None:
    torch.manual_seed(0)
    compare(_by_parts, _whole, torch.randn(6, 4, 3), torch.rand(4), torch.randn(4), torch.randn(4))


def test_memory_format_is_the_input_s() -> None:
    x = torch.randn(4, 3, 5, 5, device="tpu").to(memory_format=torch.channels_last)
    mean, invstd = aten.batch_norm_stats(x, 1e-5)
    out = aten.batch_norm_elemt(x, None, None, mean, invstd, 1e-5)
    count = torch.tensor([100], dtype=torch.int32, device="tpu")
    back = aten.batch_norm_backward_elemt(x, x, mean, invstd, None, mean, mean, count)
    assert out.stride() == back.stride() == x.stride()
