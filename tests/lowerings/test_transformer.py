"""nn.TransformerEncoderLayer and nn.MultiheadAttention in evaluation against torch's CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.mark.parametrize(("norm_first", "activation"), [(False, "relu"), (True, "gelu")])
def test_encoder_layer(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, activation=activation, norm_first=norm_first, batch_first=True
    ).eval()
    x, padding = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    with torch.no_grad():
        expected = layer(x), layer(x, src_key_padding_mask=padding)
        layer.to("tpu")
        actual = layer(x.to("tpu")), layer(x.to("tpu"), src_key_padding_mask=padding.to("tpu"))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu()[0], e[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a.cpu()[1, :3], e[1, :3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention(need_weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = module(x, x, x, need_weights=need_weights)
        y = x.to("tpu")
        actual = module.to("tpu")(y, y, y, need_weights=need_weights)
    torch.testing.assert_close(actual[0].cpu(), expected[0], rtol=1e-4, atol=1e-5)
    if need_weights:
        torch.testing.assert_close(actual[1].cpu(), expected[1], rtol=1e-4, atol=1e-5)
