"""Attention decomposed: the results and gradients of torch's composition, padded or not."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.compiler.padded import check
from torchtpu.compiler.padding.attention import attention, fused, fused_backward
from torchtpu.compiler.padding.layout import Unpaddable


def both_ways(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> list[Tensor]:
    out, log_sum, _, _, n, m, seed, offset, _ = fused(q, k, v, bias, scale=0.3)
    saved = (out, log_sum, None, None, n, m, 0.0, False, seed, offset)
    grads = fused_backward(out * 2, q, k, v, bias, [True] * 4, *saved, scale=0.3)
    return [out, *(g for g in grads if g is not None)]


def reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in (q, k, v, bias)]
    scores = leaves[0] @ leaves[1].transpose(-2, -1) * 0.3 + leaves[3]
    out = scores.softmax(-1) @ leaves[2]
    return [out.detach(), *torch.autograd.grad((out * out).sum(), leaves)]


def example(b: int, s: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(b * 10 + s)
    shapes = [(2, 2, b, 4), (2, 2, s, 4), (2, 2, s, 4), (2, 1, b, s)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_the_fused_op_and_its_gradients() -> None:
    args = example(5, 7)
    torch.testing.assert_close(both_ways(*args), reference(*args), rtol=1e-4, atol=1e-5)


def test_the_fused_op_padded() -> None:
    check(both_ways, example)


def test_unwanted_gradients_are_left_out() -> None:
    q, k, v, bias = example(5, 7)
    out, log_sum, _, _, n, m, seed, offset, _ = fused(q, k, v, bias)
    saved = (out, log_sum, None, None, n, m, 0.0, False, seed, offset)
    found = fused_backward(out, q, k, v, bias, [False, True, False, False], *saved)
    assert [g is None for g in found] == [True, False, True, True]


@pytest.mark.parametrize("causal", [False, True])
def test_a_boolean_mask(causal: bool) -> None:
    q, k, v, _ = example(7, 7)
    seen = torch.ones(7, 7, dtype=torch.bool).tril() if causal else torch.eye(7).bool()
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    found, _ = attention(q, k, v, 0.0, causal, attn_mask=None if causal else seen)
    torch.testing.assert_close(found, expected)


def test_a_query_that_sees_no_key_gives_zeros() -> None:
    q, k, v, _ = example(5, 7)
    seen = torch.ones(5, 7, dtype=torch.bool)
    seen[2] = False
    out, log_sum = attention(q, k, v, attn_mask=seen)
    assert torch.equal(out[:, :, 2], torch.zeros(2, 2, 4))
    assert bool((log_sum[:, :, 2] == -math.inf).all())


def test_half_precision_is_summed_in_single() -> None:
    q, k, v, _ = (x.bfloat16() for x in example(5, 7))
    out, log_sum = attention(q, k, v)
    assert (out.dtype, log_sum.dtype) == (torch.bfloat16, torch.float32)
    wide, _ = attention(q.float(), k.float(), v.float())
    assert torch.equal(out, wide.bfloat16())


def test_dropout_is_refused() -> None:
    q, k, v, _ = example(5, 7)
    with pytest.raises(Unpaddable, match="dropout"):
        attention(q, k, v, 0.1)
