"""scaled_dot_product_attention against torch's CPU: masks, grouped heads, dropout, one program."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.opinfo import check
from tests.lowerings.pairs import compare


def _inputs(
    heads: int = 4, key_heads: int = 4, length: int = 5, keys: int = 7
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(2, heads, length, 8),
        torch.randn(2, key_heads, keys, 8),
        torch.randn(2, key_heads, keys, 6),
    ]


def _run(device: str, tensors: list[torch.Tensor], mask: Any, **options: Any) -> list[torch.Tensor]:
    leaves = [t.detach().to(device).requires_grad_() for t in tensors]
    if isinstance(mask, torch.Tensor):
        mask = mask.detach().to(device)
        if mask.is_floating_point():
            leaves.append(mask.requires_grad_())
    q, k, v = leaves[:3]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    out.square().sum().backward()
    return [out.detach().cpu(), *(t.grad.cpu() for t in leaves if t.grad is not None)]


MASKS = {
    "none": None,
    "bool": torch.rand(5, 7) > 0.4,
    "bool_batch": torch.rand(2, 1, 1, 7) > 0.4,
    "float": torch.randn(2, 4, 5, 7),
    "float_row": torch.randn(1, 1, 5, 7),
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    scale = None if mask == "none" else 0.3
    expected = _run("cpu", _inputs(), MASKS[mask], scale=scale)
    for e, a in zip(expected, _run("tpu", _inputs(), MASKS[mask], scale=scale), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("causal", "key_heads"), list(product([False, True], [1, 2])))
def test_grouped_heads(causal: bool, key_heads: int) -> None:
    options = {"is_causal": causal, "enable_gqa": True}
    expected = _run("cpu", _inputs(key_heads=key_heads), None, **options)
    actual = _run("tpu", _inputs(key_heads=key_heads), None, **options)
    for e, a in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


def test_rows_without_a_key_give_zero() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    out, *grads = _run("tpu", _inputs(), mask)
    assert out[:, :, 2].count_nonzero() == 0
    assert all(g.isfinite().all() for g in grads)


def test_opinfo_without_dropout() -> None:
    assert check("nn.functional.scaled_dot_product_attention", max_samples=2)


def test_shapes_that_the_fused_op_does_not_cover() -> None:
    q, k, v = (t[0] for t in _inputs())  # [H, S, D]
    expected = F.scaled_dot_product_attention(q, k, v)
    actual = F.scaled_dot_product_attention(q.to("tpu"), k.to("tpu"), v.to("tpu"))
    torch.testing.assert_close(actual.cpu(), expected)
    wide = torch.ones(1, 2, 3, 9, device="tpu")
    with pytest.raises(RuntimeError, match=r"size|shape"):
        F.scaled_dot_product_attention(q.to("tpu")[None], wide, wide)


def test_dropout_is_the_same_forward_and_backward() -> None:
    query = torch.zeros(1, 2, 64, 8, device="tpu")  # equal probabilities
    value = torch.eye(64, device="tpu").expand(1, 2, 64, 64).clone().requires_grad_()
    key = torch.zeros(1, 2, 64, 8, device="tpu")
    out = F.scaled_dot_product_attention(query, key, value, dropout_p=0.25)
    kept = out.detach() != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.03
    torch.testing.assert_close(out[kept].cpu(), torch.full((int(kept.sum()),), 1 / 64 / 0.75))
    out.sum().backward()
    assert value.grad is not None
    expected = out.detach().sum(2).unsqueeze(-1).expand_as(value)
    torch.testing.assert_close(value.grad.cpu(), expected.cpu())
    again = F.scaled_dot_product_attention(query, key, value, dropout_p=0.25)
    assert not again.cpu().equal(out.cpu())


@pytest.mark.usefixtures("strict")
def test_one_program_and_no_gradient_kept() -> None:
    q, k, v = (t.to("tpu") for t in _inputs(length=9))
    before = torch.tpu._get_cache_stats()["num_compilations"]
    with torch.no_grad():
        F.scaled_dot_product_attention(q, k, v)
    assert torch.tpu._get_cache_stats()["num_compilations"] == before + 1


def test_transposed_queries_give_back_their_layout() -> None:
    q, k, v = (torch.randn(2, 5, 4, 8, device="tpu").transpose(1, 2) for _ in range(3))
    assert F.scaled_dot_product_attention(q, k, v).transpose(1, 2).is_contiguous()


def test_autocast_and_half() -> None:
    q, k, v = _inputs()
    expected = F.scaled_dot_product_attention(q, k, v)
    with torch.autocast("tpu"):
        actual = F.scaled_dot_product_attention(q.to("tpu"), k.to("tpu"), v.to("tpu"))
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float().cpu(), expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("mask_type", [None, 0, 1, 2])
def test_masked_softmax(mask_type: int | None) -> None:
    torch.manual_seed(0)
    shape = {0: (5, 5), 1: (2, 5)}.get(mask_type if mask_type is not None else 2, (2, 3, 5, 5))
    mask = torch.rand(shape) > 0.5
    x = torch.randn(2, 3, 5, 5)
    compare(torch._masked_softmax, None, x, mask, 3, mask_type)
    if mask.dim() == 4:
        chances = x.softmax(1)
        compare(torch.ops.aten._masked_softmax_backward, None, x, chances, mask, 1)


def test_transform_bias_rescale_qkv() -> None:
    qkv, bias = torch.randn(2, 5, 24), torch.randn(24)
    compare(torch._transform_bias_rescale_qkv, None, qkv, bias, 2)


def test_the_math_backend_has_second_gradients() -> None:
    def second(device: str) -> list[torch.Tensor]:
        leaves = [t.detach().to(device).requires_grad_() for t in _inputs()]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            q, k, v = leaves
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        found = torch.autograd.grad([g.square().sum() for g in first], leaves)
        return [g.cpu() for g in found]

    for a, e in zip(second("tpu"), second("cpu"), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-4)


def test_bfloat16_gradients_of_a_sharp_softmax_are_near_those_in_float64() -> None:
    torch.manual_seed(0)
    tensors = [torch.rand(4, 4, n, 8).mul(18).sub(9).bfloat16() for n in (3, 6, 6)]
    mask = torch.rand(3, 6).mul(18).sub(9).bfloat16()
    exact = _run("cpu", [t.double() for t in tensors], mask.double())
    found = _run("tpu", tensors, mask)
    for a, e in zip(found, exact, strict=True):
        assert (a.double() - e).abs().max() < 0.02 * e.abs().max()
