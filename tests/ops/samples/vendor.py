"""Ops under vendors' names, by the general ops of the same mathematics on torch's CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.ops.samples.by_autograd import gradients
from tests.ops.samples.call import Call, call, ints, out, values

aten = torch.ops.aten
_HALF = torch.bfloat16


def made() -> list[tuple[str, Call]]:
    """Return overloads' names, several in a string where they share a call, with their calls."""
    return [
        *_convolutions(),
        *_transposed(),
        *_depthwise(),
        *_slow(),
        *_slow_gradients(),
        *_batch_norms(),
        *_grids(),
        *_ctc(),
        *_dropouts(),
        *_assertions(),
    ]


def _image() -> torch.Tensor:
    return values(2, 4, 6, 7)


def _cube() -> torch.Tensor:
    return values(2, 3, 4, 5, 6)


def _convolutions() -> list[tuple[str, Call]]:
    x, w, b, z = _image(), values(8, 2, 3, 3), values(8), values(2, 8, 3, 4)
    window, swapped = ([1, 1], [2, 2], [1, 1], 2), ([2, 2], [1, 1], [1, 1], 2)
    added = "cudnn_convolution_add_relu miopen_convolution_add_relu"
    rectified = "cudnn_convolution_relu miopen_convolution_relu"
    return [
        ("cudnn_convolution", _cudnn(x, w, *window)),
        ("cudnn_convolution", _cudnn(_cube(), values(5, 3, 2, 2, 2), [0] * 3, [1] * 3, [2] * 3, 1)),
        ("cudnn_convolution", _cudnn(x.to(_HALF), w.to(_HALF), *window)),
        ("cudnn_convolution", _cudnn(x[:0], w, *window)),
        ("miopen_convolution", call(x, w, b, *window, False, False, reference=_plain)),
        ("miopen_convolution", call(x, w, None, *window, False, False, reference=_plain)),
        (rectified, call(x, w, b, *swapped, reference=_rectified)),
        (rectified, call(x, w, None, *swapped, reference=_rectified)),
        (added, call(x, w, z, 0.5, b, *swapped, reference=_added)),
        (added, call(x, w, z, None, None, *swapped, reference=_added)),
    ]


def _cudnn(x: torch.Tensor, w: torch.Tensor, *window: Any) -> Call:
    return call(x, w, *window, False, False, False, reference=_unbiased)


def _conv(x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """The convolution of the weight's rank."""
    op = torch.conv2d if w.dim() == 4 else torch.conv3d
    return op(x, w, b, stride, padding, dilation, groups)


def _plain(x: Any, w: Any, b: Any, padding: Any, stride: Any, *rest: Any) -> Any:
    return _conv(x, w, b, stride, padding, *rest[:2])


def _unbiased(x: Any, w: Any, *window: Any) -> Any:
    return _plain(x, w, None, *window)


def _rectified(*args: Any) -> Any:
    return _conv(*args).relu()


def _added(x: Any, w: Any, z: Any, alpha: float | None, *rest: Any) -> Any:
    return (_conv(x, w, *rest) + (1 if alpha is None else alpha) * z).relu()


def _transposed() -> list[tuple[str, Call]]:
    x, w, b = _image(), values(4, 3, 3, 3), values(3)
    window = ([1, 1], [1, 0], [2, 2], [1, 2], 1)  # padding, output padding, stride, dilation
    cube, kernel = _cube(), values(3, 2, 2, 2, 2)
    by_name: dict[str, Any] = {
        "stride": [2, 2],
        "padding": [1, 0],
        "output_padding": [1, 1],
        "dilation": [1, 2],
    }
    deep: dict[str, Any] = {"stride": [2, 1, 2], "padding": [1, 0, 1]}
    miopen = "miopen_convolution_transpose"
    return [
        ("cudnn_convolution_transpose", _cudnn_transposed(x, w, *window)),
        ("cudnn_convolution_transpose", _cudnn_transposed(x, values(4, 3, 3, 3), *window[:4], 2)),
        (miopen, call(x, w, b, *window, False, False, reference=_transpose)),
        (miopen, call(x, w, None, *window, False, False, reference=_transpose)),
        ("slow_conv_transpose2d", call(x, w, [3, 3], b, **by_name)),
        ("slow_conv_transpose2d", call(x[0], w, [3, 3], reference=_unbatched_transpose)),
        ("slow_conv_transpose2d.out", call(x, w, [3, 3], b, **by_name, out=out(0))),
        ("slow_conv_transpose3d", call(cube, kernel, [2, 2, 2], values(2), **deep)),
        ("slow_conv_transpose3d", call(cube[0], kernel, [2, 2, 2])),
        ("slow_conv_transpose3d.out", call(cube, kernel, [2, 2, 2], **deep, out=out(0))),
    ]


def _cudnn_transposed(x: torch.Tensor, w: torch.Tensor, *window: Any) -> Call:
    def plain(x: Any, w: Any, *window: Any) -> Any:
        return _transpose(x, w, None, *window)

    return call(x, w, *window, False, False, False, reference=plain)


def _transpose(x: Any, w: Any, b: Any, padding: Any, extra: Any, stride: Any, *rest: Any) -> Any:
    dilation, groups = rest[:2]
    return torch.conv_transpose2d(x, w, b, stride, padding, extra, groups, dilation)


def _unbatched_transpose(x: Any, w: Any, size: Any) -> Any:
    """torch's slow_conv_transpose2d gives a batch of one, and resizes its input to one too."""
    return torch.conv_transpose2d(x, w)


def _depthwise() -> list[tuple[str, Call]]:
    x, w, b = _image(), values(8, 1, 3, 3), values(8)
    window, ones = ([2, 1], [1, 1], [1, 2]), [1, 1, 1]
    cube, kernel = _cube(), values(3, 1, 2, 2, 2)

    def plain(x: Any, w: Any, size: Any, b: Any, *window: Any) -> Any:
        stride, padding, dilation = window
        return _conv(x, w, b, stride, padding, dilation, x.shape[1])

    def miopen(bias: torch.Tensor | None) -> Call:
        return call(x, w, bias, [1, 1], [1, 1], [1, 1], 4, False, False, reference=_plain)

    return [
        ("_conv_depthwise2d", call(x, w, [3, 3], b, *window, reference=plain)),
        ("_conv_depthwise2d", call(x, w, [3, 3], None, *window, reference=plain)),
        (
            "conv_depthwise3d",
            call(cube, kernel, [2, 2, 2], None, ones, ones, ones, reference=plain),
        ),
        (
            "conv_depthwise3d",
            call(cube, kernel, [2, 2, 2], values(3), [2, 1, 1], [0, 1, 0], ones, reference=plain),
        ),
        ("miopen_depthwise_convolution", miopen(b)),
        ("miopen_depthwise_convolution", miopen(None)),
    ]


def _slow() -> list[tuple[str, Call]]:
    x, w, b = _image(), values(8, 4, 3, 3), values(8)
    window, size = ([2, 2], [1, 1]), [3, 3]
    cube, kernel = _cube(), values(5, 3, 2, 2, 2)
    dilated: dict[str, Any] = {"stride": [1, 1], "padding": [2, 2], "dilation": [2, 1]}
    deep: dict[str, Any] = {"stride": [1, 2, 1], "padding": [1, 0, 1], "dilation": [2, 1, 2]}
    return [
        ("_slow_conv2d_forward", call(x, w, size, b, *window)),
        ("_slow_conv2d_forward", call(x, w, size, None, *window)),
        ("_slow_conv2d_forward.output", call(x, w, size, b, *window, output=out(0))),
        ("slow_conv_dilated2d", call(x, w, size, b, **dilated)),
        ("slow_conv_dilated2d", call(x[0], w, size)),
        ("slow_conv_dilated3d", call(cube, kernel, [2, 2, 2], values(5), **deep)),
        ("slow_conv_dilated3d", call(cube[0], kernel, [2, 2, 2])),
        ("slow_conv3d_forward", call(cube, kernel, [2, 2, 2], None, [1] * 3, [1] * 3)),
    ]


def _slow_gradients() -> list[tuple[str, Call]]:
    given = (values(2, 8, 3, 4), _image(), values(8, 4, 3, 3), [3, 3], [2, 2], [1, 1])
    into: dict[str, Any] = {"grad_input": out(0), "grad_weight": out(0), "grad_bias": out(0)}
    return [
        ("_slow_conv2d_backward.output_mask", call(*given, [True, True, True])),
        ("_slow_conv2d_backward.output_mask", call(*given, [False, True, False])),
        ("_slow_conv2d_backward.grad_input", call(*given, **into)),
    ]


def _batch_norms() -> list[tuple[str, Call]]:
    x, w, b = _image(), values(4), values(4) / 2
    mean, var = values(4) / 3, values(4, low=0.5)
    of_batch = [x.mean((0, 2, 3)), (x.var((0, 2, 3), correction=0) + 1e-5).rsqrt()]
    back = (x, x.cos(), w, mean, var, *of_batch, 1e-5)
    found = []
    for training in (True, False):
        given = (x, w, b, mean, var, training, 0.1, 1e-5)
        found += [
            ("cudnn_batch_norm", call(*given, reference=_batch_norm_and_reserve)),
            ("miopen_batch_norm", call(*given, reference=torch.native_batch_norm)),
        ]
    without = call(x, w, None, None, None, True, 0.1, 1e-5, reference=torch.native_batch_norm)
    reserve = out(0, dtype=torch.uint8)
    return [
        *found,
        ("miopen_batch_norm", without),
        ("miopen_batch_norm_backward", call(*back, reference=_batch_norm_backward)),
        ("cudnn_batch_norm_backward", call(*back, reserve, reference=_batch_norm_backward)),
    ]


def _batch_norm_and_reserve(*args: Any) -> Any:
    return *torch.native_batch_norm(*args), torch.empty(0, dtype=torch.uint8)


def _batch_norm_backward(
    x: Any, grad: Any, w: Any, mean: Any, var: Any, saved_mean: Any, saved_std: Any, *rest: Any
) -> Any:
    """By autograd through the formula; the statistics are the batch's."""

    def normal(x: Any, w: Any, b: Any) -> Any:
        return F.batch_norm(x, None, None, w, b, True, 0.1, rest[0])

    return gradients(normal, grad, x, w, torch.zeros_like(w))


def _grids() -> list[tuple[str, Call]]:
    x, grid = _image(), values(2, 5, 3, 2) * 0.6
    theta, size = values(2, 2, 3), (2, 3, 4, 5)

    def sampled(x: Any, grid: Any) -> Any:
        return F.grid_sample(x, grid, align_corners=True)

    def affine(theta: Any, *size: int) -> Any:
        return F.affine_grid(theta, list(size), align_corners=True)

    def affine_backward(grad: Any, *size: int) -> Any:
        return gradients(lambda t: affine(t, *size), grad, torch.ones(size[0], 2, 3))[0]

    def sampled_backward(x: Any, grid: Any, grad: Any) -> Any:
        return gradients(sampled, grad, x, grid)

    return [
        ("cudnn_grid_sampler", call(x, grid, reference=sampled)),
        (
            "cudnn_grid_sampler_backward",
            call(x, grid, values(2, 4, 5, 3), reference=sampled_backward),
        ),
        ("cudnn_affine_grid_generator", call(theta, *size, reference=affine)),
        (
            "cudnn_affine_grid_generator_backward",
            call(values(2, 4, 5, 2), *size, reference=affine_backward),
        ),
    ]


def _ctc() -> list[tuple[str, Call]]:
    x, padded = values(7, 2, 5).log_softmax(-1), ints(1, 2, 2, 4, 1, 0).reshape(2, 3)
    joined, whole, short = ints(1, 2, 2, 4, 1), ([7, 6], [3, 2]), ([2, 6], [3, 2])
    found = []
    for vendor in ("cudnn", "miopen"):
        name = "_cudnn_ctc_loss" if vendor == "cudnn" else "miopen_ctc_loss"
        for lengths, zeroed in ((whole, False), (short, True), (short, False)):
            rest = (0, True, zeroed)
            found += [
                (name, call(x, padded, *lengths, *rest, reference=_ctc_loss)),
                (f"{name}.Tensor", call(x, joined, *map(_i, lengths), *rest, reference=_ctc_loss)),
            ]
        use = f"_use_{vendor}_ctc_loss"
        found += [
            (use, call(x, padded, *whole, 0, reference=_never)),
            (f"{use}.Tensor", call(x, padded, *map(_i, whole), 0, reference=_never)),
        ]
    return found


def _i(numbers: list[int]) -> torch.Tensor:
    return ints(*numbers)


def _never(*_: Any) -> bool:
    return False


def _ctc_loss(x: Any, targets: Any, inputs: Any, labels: Any, blank: int, *rest: Any) -> Any:
    """The loss, and its gradient as torch's CPU gives it for a gradient of one."""
    zeroed, lengths = rest[1], [torch.as_tensor(v).tolist() for v in (inputs, labels)]
    loss, alpha = aten._ctc_loss(x, targets, *lengths, blank, zeroed)
    given = (torch.ones_like(loss), x, targets, *lengths, loss, alpha, blank, zeroed)
    kept = loss.where(loss.isfinite(), 0) if zeroed else loss
    return kept, aten._ctc_loss_backward(*given)


def _dropouts() -> list[tuple[str, Call]]:
    x, mask = values(3, 4), (values(3, 4) > 0).byte()

    def dropped(x: Any, p: float) -> Any:
        kept = torch.empty_like(x, dtype=torch.uint8).bernoulli_(p)
        return x * kept / p, kept

    def state(*_: Any, **__: Any) -> Any:
        return torch.empty(8, dtype=torch.uint8)

    def scaled(x: Any, mask: Any, scale: float) -> Any:
        return (x.double() * mask * scale).to(x.dtype)

    where = {"dtype": torch.uint8, "device": torch.device("cpu")}
    return [
        ("_fused_dropout", call(x, 0.7, random=True, reference=dropped)),
        ("_fused_dropout", call(x, 1.0, reference=dropped)),
        ("_masked_scale", call(x, mask, 1.5, reference=scaled)),
        ("_masked_scale", call(x.to(_HALF), mask, 1.1, reference=scaled)),
        (
            "_cudnn_init_dropout_state",
            call(0.5, True, 42, **where, random=True, reference=state),
        ),
    ]


def _assertions() -> list[tuple[str, Call]]:
    return [
        ("_assert_async", call(torch.ones(1))),
        ("_assert_async", call(torch.tensor(True))),
        ("_assert_async.msg", call(values(1), "must not be zero")),
        ("_assert_async.msg", call(torch.tensor([[-3]]), "must not be zero")),
    ]
