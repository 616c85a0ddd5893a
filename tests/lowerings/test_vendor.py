"""Ops under vendors' names against the general ops of the same mathematics on torch's CPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.pairs import compare, compare_gradients

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _image(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (2, 4, 6, 7)))


_conv = partial(torch.conv2d, stride=2, padding=1, groups=2)


def test_convolutions_of_cudnn_and_miopen() -> None:
    x, w, b, z = _image(), _image(8, 2, 3, 3), _image(8), _image(2, 8, 3, 4)
    window = ([1, 1], [2, 2], [1, 1], 2)  # padding, stride, dilation, groups
    fused = ([2, 2], [1, 1], [1, 1], 2)
    compare_gradients(
        lambda x, w: aten.cudnn_convolution(x, w, *window, False, False, False), _conv, x, w
    )
    compare(
        lambda x, w, o: aten.cudnn_convolution.out(x, w, *window, False, False, False, out=o),
        lambda x, w, o: _conv(x, w),
        x,
        w,
        torch.empty(0),
    )
    compare(lambda *t: aten.miopen_convolution(*t, *window, False, False), _conv, x, w, b)
    for relu in (aten.cudnn_convolution_relu, aten.miopen_convolution_relu):
        compare(lambda *t, op=relu: op(*t, *fused), lambda *t: _conv(*t).relu(), x, w, b)
    for add in (aten.cudnn_convolution_add_relu, aten.miopen_convolution_add_relu):
        compare(
            lambda x, w, b, z, op=add: op(x, w, z, 0.5, b, *fused),
            lambda x, w, b, z: (_conv(x, w, b) + 0.5 * z).relu(),
            x,
            w,
            b,
            z,
        )


def test_transposed_convolutions() -> None:
    x, w, b = _image(), _image(4, 3, 3, 3), _image(3)
    window = ([1, 1], [1, 1], [2, 2], [1, 1], 1)  # padding, output padding, stride, dilation
    plain = partial(torch.conv_transpose2d, stride=2, padding=1, output_padding=1)
    compare(
        lambda *t: aten.cudnn_convolution_transpose(*t, *window, False, False, False), plain, x, w
    )
    compare(lambda *t: aten.miopen_convolution_transpose(*t, *window, False, False), plain, x, w, b)
    sizes = ([3, 3], b, [2, 2], [1, 1], [1, 1], [1, 1])
    compare(aten.slow_conv_transpose2d, None, x, w, *sizes)
    cube, kernel = _image(2, 3, 4, 5, 6), _image(3, 2, 2, 2, 2)
    compare_gradients(lambda x, w: aten.slow_conv_transpose3d(x, w, [2, 2, 2]), None, cube, kernel)


def test_depthwise_convolutions() -> None:
    x, w, b = _image(), _image(8, 1, 3, 3), _image(8)
    plain = partial(torch.conv2d, padding=1, groups=4)
    sizes = ([1, 1], [1, 1], [1, 1])
    compare_gradients(
        lambda x, w, b: aten._conv_depthwise2d(x, w, [3, 3], b, *sizes), plain, x, w, b
    )
    compare(
        lambda x, w, b, o: aten._conv_depthwise2d.out(x, w, [3, 3], b, *sizes, out=o),
        lambda x, w, b, o: plain(x, w, b),
        x,
        w,
        b,
        torch.empty(0),
    )
    miopen = ([1, 1], [1, 1], [1, 1], 4)
    compare(lambda *t: aten.miopen_depthwise_convolution(*t, *miopen, False, False), plain, x, w, b)
    cube, kernel = _image(2, 3, 4, 5, 6), _image(3, 1, 2, 2, 2)
    ones = [1, 1, 1]
    compare(
        lambda x, w: aten.conv_depthwise3d(x, w, [2, 2, 2], None, ones, ones, ones),
        lambda x, w: torch.conv3d(x, w, None, 1, 1, 1, 3),
        cube,
        kernel,
    )


def test_slow_convolutions() -> None:
    x, w, b = _image(), _image(8, 4, 3, 3), _image(8)
    window = ([2, 2], [1, 1])
    compare_gradients(
        lambda x, w, b: aten._slow_conv2d_forward(x, w, [3, 3], b, *window), None, x, w, b
    )
    compare(
        lambda x, w, b, o: aten._slow_conv2d_forward.output(x, w, [3, 3], b, *window, output=o),
        None,
        x,
        w,
        b,
        torch.empty(0),
    )
    grad = _image(2, 8, 3, 4)
    mask = [False, True, False]
    compare(aten._slow_conv2d_backward.output_mask, None, grad, x, w, [3, 3], *window, mask)
    compare(
        lambda g, x, w, *outs: aten._slow_conv2d_backward.grad_input(
            g, x, w, [3, 3], *window, grad_input=outs[0], grad_weight=outs[1], grad_bias=outs[2]
        ),
        None,
        grad,
        x,
        w,
        *(torch.empty(0) for _ in range(3)),
    )
    dilated = ([3, 3], b, [1, 1], [2, 2], [2, 2])
    compare(aten.slow_conv_dilated2d, None, x, w, *dilated)
    compare(aten.slow_conv_dilated2d, None, x[0], w, *dilated)
    cube, kernel = _image(2, 3, 4, 5, 6), _image(5, 3, 2, 2, 2)
    compare(aten.slow_conv_dilated3d, None, cube, kernel, [2, 2, 2])
    compare(aten.slow_conv3d_forward, None, cube, kernel, [2, 2, 2], None, [1, 1, 1], [1, 1, 1])


@pytest.mark.parametrize("vendor", ["cudnn", "miopen"])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(vendor: str, training: bool) -> None:
    op = getattr(aten, f"{vendor}_batch_norm")
    count = 3 if training else 1

    def named(x: torch.Tensor, *t: torch.Tensor) -> list[torch.Tensor]:
        return [*op(x, *t, training, 0.1, 1e-5)[:count], *t[2:]]

    def plain(x: torch.Tensor, *t: torch.Tensor) -> list[torch.Tensor]:
        return [*aten.native_batch_norm(x, *t, training, 0.1, 1e-5)[:count], *t[2:]]

    compare(named, plain, _image(), _image(4), _image(4), _image(4), torch.rand(4))
    compare_gradients(
        lambda x, w, b: op(x, w, b, None, None, True, 0.1, 1e-5)[0],
        lambda x, w, b: torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)[0],
        _image(),
        _image(4),
        _image(4),
    )


def test_grids() -> None:
    grid = torch.rand(2, 5, 6, 2) * 2 - 1
    compare_gradients(
        aten.cudnn_grid_sampler,
        partial(F.grid_sample, align_corners=True),
        _image(),
        grid,
    )
    compare_gradients(
        lambda t: aten.cudnn_affine_grid_generator(t, 2, 3, 4, 5),
        lambda t: F.affine_grid(t, [2, 3, 4, 5], align_corners=True),
        _image(2, 2, 3),
    )


def test_ctc_loss() -> None:
    log_probs, targets = _image(7, 2, 5).log_softmax(-1), torch.randint(1, 5, (2, 3))
    lengths = ([7, 6], [3, 2])
    named = (aten._cudnn_ctc_loss, aten.miopen_ctc_loss)
    for op in named:
        compare_gradients(
            lambda x, op=op: op(x, targets.to(x.device), *lengths, 0, True, False)[0],
            lambda x: aten._ctc_loss(x, targets, *lengths)[0],
            log_probs,
        )
    tensors = tuple(torch.tensor(v) for v in lengths)
    x, labels = log_probs.to("tpu"), targets.to("tpu")
    by_tensor = aten._cudnn_ctc_loss.Tensor(x, labels, *tensors, 0, True, False)[0]
    torch.testing.assert_close(by_tensor.cpu(), aten._ctc_loss(log_probs, targets, *lengths)[0])
    assert aten._use_cudnn_ctc_loss(x, labels, *lengths, 0) is False
    assert aten._use_miopen_ctc_loss(x, labels, *lengths, 0) is False


def test_an_impossible_target_costs_nothing_where_infinity_is_zeroed() -> None:
    log_probs = _image(2, 1, 5).log_softmax(-1).to("tpu")
    targets = torch.tensor([[1, 1, 1]], device="tpu")
    loss, grad = aten._cudnn_ctc_loss(log_probs, targets, [2], [3], 0, True, True)
    assert loss.item() == 0
    assert grad.count_nonzero().item() == 0


def test_fused_dropout_keeps_with_probability_p() -> None:
    out, mask = aten._fused_dropout(torch.ones(4000, device="tpu"), 0.8)
    assert mask.dtype == torch.uint8
    assert 0.75 < mask.float().mean().item() < 0.85
    torch.testing.assert_close(out, mask.float() * 1.25)
    compare(aten._masked_scale, lambda x, m, s: x * m * s, _image(3), torch.ones(3).byte(), 2.0)


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
