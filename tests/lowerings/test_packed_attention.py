"""Attention under the names of CUDA's kernels: packed, paged, windowed, dropped and in 8 bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import varlen as packed

from tests.lowerings.pairs import compare_gradients

aten = torch.ops.aten
attention: Any = F.scaled_dot_product_attention
varlen: Any = packed.varlen_attn
STARTS_Q, STARTS_K = torch.tensor([0, 3, 3, 8, 9]), torch.tensor([0, 4, 6, 12, 14])
WIDTH = 8


def _dense() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 4, n, WIDTH) for n in (5, 7, 7)]


def _packed(key_heads: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((9, 4), (14, key_heads), (14, key_heads))
    return [torch.randn(*shape, WIDTH) for shape in shapes]


def _starts() -> tuple[torch.Tensor, torch.Tensor]:
    return STARTS_Q.int().to("tpu"), STARTS_K.int().to("tpu")


def _one_by_one(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: tuple[int, int] = (-1, -1),
    slopes: torch.Tensor | None = None,
    used: list[int] | None = None,
    lower_right: bool = True,
) -> torch.Tensor:
    """Each sequence by itself on the CPU."""
    results = []
    for b in range(4):
        rows, columns = slice(*STARTS_Q[b : b + 2]), slice(*STARTS_K[b : b + 2])
        count = q.shape[1] // k.shape[1]
        query = q[rows].transpose(0, 1)
        key, value = (t[columns].transpose(0, 1).repeat_interleave(count, 0) for t in (k, v))
        if used is not None:
            key, value = key[:, : used[b]], value[:, : used[b]]
        off = key.shape[1] - query.shape[1] if lower_right else 0
        i, j = torch.arange(query.shape[1])[:, None] + off, torch.arange(key.shape[1])
        scores = query @ key.transpose(1, 2) * WIDTH**-0.5
        if slopes is not None:
            scores = scores - slopes[:, None, None] * (i - j).abs()
        left, right = window
        hidden = (i - j > left) & (left >= 0) | (j - i > right) & (right >= 0)
        chances = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0)
        results.append((chances @ value).transpose(0, 1))
    return torch.cat(results)


alone: Any = _one_by_one


@pytest.mark.parametrize("causal", [False, True])
def test_flash(causal: bool) -> None:
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2) if causal else None
    compare_gradients(
        lambda *t: aten._scaled_dot_product_flash_attention(*t, 0.0, causal)[0],
        lambda *t: attention(*t, mask),
        *_dense(),
    )


@pytest.mark.parametrize("causal", [False, True])
def test_efficient_and_cudnn(causal: bool) -> None:
    bias = torch.randn(2, 1, 5, 7)
    shown = torch.ones(5, 7, dtype=torch.bool).tril() | (not causal)

    def plain(*t: torch.Tensor) -> Any:
        return attention(*t[:3], t[3].masked_fill(~shown, -torch.inf))

    compare_gradients(
        lambda *t: aten._scaled_dot_product_efficient_attention(*t, True, 0.0, causal)[0],
        plain,
        *_dense(),
        bias,
    )
    on_device = bias.to("tpu")
    compare_gradients(
        lambda *t: aten._scaled_dot_product_cudnn_attention(*t, on_device, True, 0.0, causal)[0],
        lambda *t: plain(*t, bias),
        *_dense(),
    )


def test_log_sum_exps_in_each_form() -> None:
    q, k, v = (t.to("tpu") for t in _dense())
    expected = torch.logsumexp(_dense()[0] @ _dense()[1].transpose(2, 3) * WIDTH**-0.5, -1)
    flash = aten._scaled_dot_product_flash_attention(q, k, v)
    padded = aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[1]
    column = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)[1]
    assert padded.shape == (2, 4, 32)
    for sums in (flash[1], padded[..., :5], column[..., 0]):
        torch.testing.assert_close(sums.cpu(), expected)
    assert flash[2:6] == (None, None, 5, 7)
    without = aten._scaled_dot_product_efficient_attention(q, k, v, None, False)[1]
    assert without.shape == (2, 4, 0)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 1)])
def test_packed_sequences(window: tuple[int, int]) -> None:
    starts = _starts()
    compare_gradients(
        lambda *t: varlen(*t, *starts, 5, 6, window_size=window, enable_gqa=True),
        lambda *t: alone(*t, window),
        *_packed(),
    )


def test_pages_slopes_and_lengths() -> None:
    tensors = _packed()
    on = [t.to("tpu") for t in tensors]
    used, slopes = [2, 1, 6, 1], torch.rand(4)
    lengths = torch.tensor(used, dtype=torch.int32, device="tpu")
    cut = varlen(*on, *_starts(), 5, 6, enable_gqa=True, seqused_k=lengths)
    torch.testing.assert_close(cut.cpu(), alone(*tensors, used=used))
    args = (*on, *_starts(), 5, 6, 0.0, True, False)
    slanted = aten._flash_attention_forward(*args, alibi_slopes=slopes.to("tpu"))[0]
    torch.testing.assert_close(slanted.cpu(), alone(*tensors, (-1, 0), slopes))
    pools = [torch.randn(12, 2, 2, WIDTH) for _ in range(2)]
    table = torch.tensor([[3, 1, 0], [5, 2, 9], [4, 6, 7], [8, 0, 1]], dtype=torch.int32)
    whole = [4, 2, 6, 2]
    rows = [
        torch.cat([p[table[b].long()].flatten(0, 1)[: whole[b]] for b in range(4)]) for p in pools
    ]
    paged = varlen(
        on[0],
        *(p.to("tpu") for p in pools),
        *_starts(),
        5,
        6,
        enable_gqa=True,
        seqused_k=torch.tensor(whole, dtype=torch.int32, device="tpu"),
        block_table=table.to("tpu"),
    )
    torch.testing.assert_close(paged.cpu(), alone(tensors[0], *rows))


@pytest.mark.parametrize("mask_type", [1, 2])
def test_packed_efficient_and_cudnn(mask_type: int) -> None:
    starts = _starts()

    def efficient(*t: torch.Tensor) -> torch.Tensor:
        batch = [x.unsqueeze(0) for x in t]
        args = (None, *starts, 5, 6, 0.0, mask_type, True)
        made: torch.Tensor = aten._efficient_attention_forward(*batch, *args)[0]
        return made.squeeze(0)

    def plain(*t: torch.Tensor) -> Any:
        return alone(*t, (-1, 0), lower_right=mask_type == 2)

    compare_gradients(efficient, plain, *_packed(4))
    if mask_type == 1:
        compare_gradients(
            lambda *t: aten._cudnn_attention_forward(*t, None, *starts, 5, 6, True, 0.0, True)[0],
            plain,
            *_packed(4),
        )


def test_dropout_is_what_its_mask_says() -> None:
    tensors, p = _dense(), 0.3
    q, k, v = (t.to("tpu") for t in tensors)
    out, sums, *key = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, p)
    drawn = torch.empty(2, 4, 5, 7, device="tpu")
    aten._fill_mem_eff_dropout_mask_(drawn, p, *(int(n.item()) for n in key))
    keep = (drawn.cpu() >= p) / (1 - p)
    leaves = [t.clone().requires_grad_() for t in tensors]
    chances = (leaves[0] @ leaves[1].transpose(2, 3) * WIDTH**-0.5).softmax(-1)
    expected = (chances * keep) @ leaves[2]
    torch.testing.assert_close(out.cpu(), expected.detach())
    grads = aten._scaled_dot_product_efficient_attention_backward(
        torch.ones_like(out), q, k, v, None, out, sums, *key, p, [True, True, True, False]
    )
    expected.sum().backward()
    for grad, leaf in zip(grads, leaves, strict=False):
        torch.testing.assert_close(grad.cpu(), leaf.grad)


def test_flash_dropout_draws_anew_and_has_gradients() -> None:
    q, k, v = (t.to("tpu").requires_grad_() for t in _dense())
    first, second = (aten._scaled_dot_product_flash_attention(q, k, v, 0.5)[0] for _ in range(2))
    assert (first != second).any()
    first.sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (q, k, v))


def test_8_bit_floats_and_the_inplace_form() -> None:
    tensors, scales = _dense(), [torch.rand(2, 4) + 0.5 for _ in range(3)]
    small = [t.to(torch.float8_e4m3fn) for t in tensors]
    wide = [t.float() * s[:, :, None, None] for t, s in zip(small, scales, strict=True)]
    on = [t.to("tpu") for t in (*small, *scales)]
    made = aten._scaled_dot_product_flash_attention.quantized(*on)[0]
    assert made.dtype == torch.bfloat16
    expected = attention(*wide)
    torch.testing.assert_close(made.cpu().float(), expected, rtol=3e-2, atol=3e-2)
    rows = [t.transpose(1, 2).to("tpu") for t in tensors]
    out = torch.empty(2, 5, 4, WIDTH, device="tpu")
    args = (None, None, 5, 7, 0.0, False, False)
    aten._flash_attention_forward_no_dropout_inplace(out, *rows, *args)
    torch.testing.assert_close(out.cpu().transpose(1, 2), attention(*tensors))


def test_the_rest_of_the_names() -> None:
    q, k, v = (t.to("tpu") for t in _dense())
    expected = attention(*_dense())
    torch.testing.assert_close(aten._triton_scaled_dot_attention(q, k, v).cpu(), expected)
    overrideable = torch.nn.attention.SDPBackend.OVERRIDEABLE.value
    assert aten._fused_sdp_choice(q, k, v) == overrideable
    assert aten._fused_sdp_choice(q[0], k[0], v[0]) == torch.nn.attention.SDPBackend.MATH.value
    x = torch.randn(2, 5, 16)
    weights = [torch.randn(s) for s in ((48, 16), (48,), (16, 16), (16,))]
    named = aten._triton_multi_head_attention(
        *[x.to("tpu")] * 3, 16, 4, *(w.to("tpu") for w in weights)
    )
    whole = aten._native_multi_head_attention(x, x, x, 16, 4, *weights, None, False)[0]
    torch.testing.assert_close(named.cpu(), whole, rtol=1e-4, atol=1e-4)
