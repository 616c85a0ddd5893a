"""Ops under vendors' names: what their calls in tests/ops/samples cannot say."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.pairs import compare_gradients

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _image(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (2, 4, 6, 7)))


def test_gradients_of_convolutions() -> None:
    x, w = _image(), _image(8, 2, 3, 3)
    window = ([1, 1], [2, 2], [1, 1], 2)  # padding, stride, dilation, groups
    compare_gradients(
        lambda x, w: aten.cudnn_convolution(x, w, *window, False, False, False),
        partial(torch.conv2d, stride=2, padding=1, groups=2),
        x,
        w,
    )
    cube, kernel = _image(2, 3, 4, 5, 6), _image(3, 2, 2, 2, 2)
    compare_gradients(lambda x, w: aten.slow_conv_transpose3d(x, w, [2, 2, 2]), None, cube, kernel)


def test_gradients_of_convolutions_with_a_bias() -> None:
    x, b, size, ones = _image(), _image(8), [3, 3], [1, 1]
    compare_gradients(
        lambda x, w, b: aten._conv_depthwise2d(x, w, size, b, ones, ones, ones),
        partial(torch.conv2d, padding=1, groups=4),
        x,
        _image(8, 1, 3, 3),
        b,
    )
    compare_gradients(
        lambda x, w, b: aten._slow_conv2d_forward(x, w, size, b, [2, 2], ones),
        None,
        x,
        _image(8, 4, 3, 3),
        b,
    )


@pytest.mark.parametrize("vendor", ["cudnn", "miopen"])
def test_gradients_of_batch_norm(vendor: str) -> None:
    op = getattr(aten, f"{vendor}_batch_norm")
    compare_gradients(
        lambda x, w, b: op(x, w, b, None, None, True, 0.1, 1e-5)[0],
        lambda x, w, b: torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)[0],
        _image(),
        _image(4),
        _image(4),
    )


def test_gradients_of_grids() -> None:
    compare_gradients(
        aten.cudnn_grid_sampler,
        partial(F.grid_sample, align_corners=True),
        _image(),
        torch.rand(2, 5, 6, 2) * 2 - 1,
    )
    compare_gradients(
        lambda t: aten.cudnn_affine_grid_generator(t, 2, 3, 4, 5),
        lambda t: F.affine_grid(t, [2, 3, 4, 5], align_corners=True),
        _image(2, 2, 3),
    )


@pytest.mark.parametrize("name", ["_cudnn_ctc_loss", "miopen_ctc_loss"])
def test_gradients_of_ctc_loss(name: str) -> None:
    log_probs, targets = _image(7, 2, 5).log_softmax(-1), torch.randint(1, 5, (2, 3))
    lengths, op = ([7, 6], [3, 2]), getattr(aten, name)
    compare_gradients(
        lambda x: op(x, targets.to(x.device), *lengths, 0, True, False)[0],
        lambda x: aten._ctc_loss(x, targets, *lengths)[0],
        log_probs,
    )


def test_fused_dropout_keeps_with_probability_p() -> None:
    out, mask = aten._fused_dropout(torch.ones(4000, device="tpu"), 0.8)
    assert mask.dtype == torch.uint8
    assert 0.75 < mask.float().mean().item() < 0.85
    torch.testing.assert_close(out, mask.float() * 1.25)


def test_assert_async() -> None:
    torch._assert_async(torch.ones(1, device="tpu"))
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
        torch._assert_async(torch.zeros((), device="tpu"))
    with pytest.raises(RuntimeError, match="too small"):
        torch._assert_async(torch.zeros(1, device="tpu") > 0, "too small")
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        torch._assert_async(torch.ones(2, device="tpu"))


def test_quantized_dtypes_are_refused_in_words() -> None:
    from torchtpu.errors import TpuError

    x = torch.ones(3, device="tpu")
    with pytest.raises(TpuError, match=r"\[quantize_per_tensor\] expected int8 or uint8 values"):
        torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
    assert torch.dequantize(x.bfloat16()).dtype == torch.float32
