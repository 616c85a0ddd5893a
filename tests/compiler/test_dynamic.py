"""Sizes that vary: a program per bucket, the right values, and a reason where it cannot be."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchtpu import executor


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiles() -> int:
    """Compiled graphs so far: what tests do around them, in strict mode, is not counted."""
    programs = executor.current().cache.stats.per_program
    return sum(n for name, n in programs.items() if name.startswith("graph_"))


def compiled(fn: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(fn, backend="tpu", **settings)
    return made


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def test_a_varying_batch_compiles_a_program_each_way_per_power_of_two() -> None:
    theirs = classifier()
    ours = copy.deepcopy(theirs).to("tpu")
    loss = compiled(lambda x, t: F.cross_entropy(ours(x), t), dynamic=True)
    before = compiles()
    for n in (3, 4, 5, 6, 7, 8, 3, 8):
        x, t = torch.randn(n, 6), torch.randint(0, 3, (n,))
        theirs.zero_grad()
        ours.zero_grad()
        value, wanted = loss(x.to("tpu"), t.to("tpu")), F.cross_entropy(theirs(x), t)
        value.backward()
        wanted.backward()
        torch.testing.assert_close(value.detach().cpu(), wanted.detach(), rtol=1e-5, atol=1e-6)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert a.grad is not None
            torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-6)
    assert compiles() - before == 4  # forward and backward, buckets 4 and 8


def test_results_have_the_true_sizes_and_are_dense() -> None:
    double = compiled(lambda x: x * 2, dynamic=True)
    for shape in ((3, 5), (5, 3), (6, 7)):
        x = torch.randn(shape)
        result = double(x.to("tpu"))
        assert result.shape == shape
        assert result.is_contiguous()
        torch.testing.assert_close(result.cpu(), x * 2)


def test_bounds_and_options_choose_the_buckets() -> None:
    total = compiled(lambda x: x.sum(), options={"num_dynamic_buckets": 2, "bucket_size": 16})
    before = compiles()
    for n in range(10, 65, 6):
        x = torch.ones(n, device="tpu")
        torch._dynamo.mark_dynamic(x, 0, min=10, max=64)
        assert total(x).item() == n
    assert compiles() - before == 2


def test_the_second_size_makes_a_dimension_dynamic_by_itself() -> None:
    mean = compiled(lambda x: (x - x.mean(0)).square().sum())
    before = compiles()
    for n in (3, 5, 6, 7, 8):
        x = torch.arange(float(n))
        assert mean(x.to("tpu")).item() == pytest.approx((x - x.mean()).square().sum().item())
    assert compiles() - before == 2  # three exactly, then the bucket of eight


def test_what_cannot_be_padded_is_compiled_per_size_and_says_why() -> None:
    median = compiled(lambda x: x.median(), dynamic=True)
    with pytest.warns(UserWarning, match="compiled once per size.*median"):
        assert median(torch.arange(5.0).to("tpu")).item() == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert median(torch.arange(7.0).to("tpu")).item() == 3


def test_attention_over_a_varying_length() -> None:
    attend = compiled(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), dynamic=True
    )
    before = compiles()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for n in (5, 6, 8):
            q, k, v = (torch.randn(2, 2, n, 4) for _ in range(3))
            ours = [t.to("tpu").requires_grad_() for t in (q, k, v)]
            theirs = [t.requires_grad_() for t in (q, k, v)]
            attend(*ours).square().sum().backward()
            reference = F.scaled_dot_product_attention(
                theirs[0], theirs[1], theirs[2], is_causal=True
            )
            reference.square().sum().backward()
            for a, b in zip(ours, theirs, strict=True):
                assert a.grad is not None
                torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)
    assert compiles() - before == 2


def test_an_input_that_is_changed_in_place_is_changed_in_the_true_tensor() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    run = compiled(change, dynamic=True)
    for n in (3, 5):
        x = torch.zeros(n, device="tpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert run(x).tolist() == [2] * n
        assert x.tolist() == [1] * n
