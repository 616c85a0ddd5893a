"""Each rule alone, forward and backward: a padded op beside the same op without padding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.compiler.padded import Function, check, with_gradients

_GENERATOR = torch.Generator().manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_GENERATOR)


def randint(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=_GENERATOR)


def table(b: int, s: int) -> list[Tensor]:
    return [randn(b, s)]


def one(b: int, s: int) -> list[Tensor]:
    return [randn(b, s, 4)]


def two(b: int, s: int) -> list[Tensor]:
    return [randn(b, s, 4), randn(b, s, 4)]


def heads(b: int, s: int) -> list[Tensor]:
    return [randn(b, 2, s, 4) for _ in range(3)]


def images(b: int, _s: int) -> list[Tensor]:
    return [randn(b, 3, 6, 6)]


def scattered(b: int, s: int) -> list[Tensor]:
    return [randn(b, 20), randint(20, b, s), randn(b, s)]


FORWARD: dict[str, tuple[Function, Any]] = {
    "all_any": (lambda x: ((x > 0).any(), (x > 0).all(1), (x > -9).all(), (x > 9).any(0)), one),
    "argmax": (lambda x: (x.argmax(1), x.argmin(0), x.argmax(1, keepdim=True), x.argmax()), one),
    "bucketize": (
        lambda x, c: torch.bucketize(x, c.sort()[0]),
        lambda b, s: [randn(b, s), randn(3)],
    ),
    "cdist": (lambda x: torch.cdist(x.transpose(1, 2), x.transpose(1, 2)), one),
    "count": (lambda x: (torch.count_nonzero(x > 0), torch.count_nonzero(x > 0, 1)), one),
    "cummax": (lambda x: (*x.cummax(1), x.logcumsumexp(1), x.cumprod(0)), one),
    "extrema": (lambda x: (*x.max(1), *x.min(0), *torch.aminmax(x, dim=1), x.max(), x.min()), one),
    "factories": (
        lambda x: (
            torch.arange(x.shape[1]) + x.sum(0),
            torch.arange(x.shape[0], x.shape[0] + x.shape[1]),
            torch.arange(0, 2 * x.shape[0], 2),
            torch.full((x.shape[0], 3), x.shape[1]),
            torch.zeros(x.shape[1]),
            x.new_ones(x.shape[0], 2),
            torch.eye(x.shape[0]),
            torch.ones(x.shape).tril(),
        ),
        table,
    ),
    "fft": (lambda x: torch.fft.fft(x, dim=2).abs(), one),
    "index_add": (
        lambda x, i, v: x.index_add(0, i, v),
        lambda b, s: [randn(20, b), randint(20, s), randn(s, b)],
    ),
    "index_put": (
        lambda x, i, v: (
            x.index_put((i,), v, accumulate=True),
            x.index_put((i,), v[:1] * 0 + 1),
            x.index_put((i - 20,), v, accumulate=True),
        ),
        lambda b, s: [randn(20, 4), randint(20, s), randn(s, 4)],
    ),
    "integers": (
        lambda i: (i.sum(), i.amax(1), i.max(0)[1], i.prod(), i.cumsum(0), i.sort(1)[0]),
        lambda b, s: [randint(9, b, s)],
    ),
    "meshgrid": (
        lambda x: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(x.shape[1]), indexing="ij"),
        table,
    ),
    "one_hot": (lambda i: F.one_hot(i, 9).float().mean(0), lambda b, s: [randint(9, b, s)]),
    "scatter": (
        lambda x, i, y: (
            x.scatter_add(1, i, y),
            x.scatter(1, i * 0 + torch.arange(i.shape[1])[None], y),
            x.scatter(1, i, 2.5),
            x.scatter_reduce(1, i, y, "amax"),
            x.scatter_reduce(1, i, y, "prod"),
            x.scatter_reduce(1, i, y, "mean", include_self=False),
        ),
        scattered,
    ),
    "scatter_into_longer_rows": (
        lambda x, i, y: x.scatter_add(1, i, y),
        lambda b, s: [randn(8, 20), randint(20, b, s), randn(b, s)],
    ),
    "size_as_a_number": (
        lambda x: (
            x.sum() / x.shape[0],
            x + x.shape[0] ** -0.5,
            x > x.shape[0],
            x.clamp(max=x.shape[1]),
            x.shape[0] - x,
            (x * 10).int() % x.shape[1],
            x**2 / (x.shape[0] * x.shape[1] // 2),
            x.shape[0] * x.shape[1],
        ),
        table,
    ),
    "sort": (
        lambda x: (
            *x.sort(1),
            *x.sort(0, descending=True),
            x.argsort(1),
            *x.topk(2, 1),
            *x.topk(2, 0, largest=False),
            *x.topk(2, 2),
        ),
        one,
    ),
    "sort_of_nan_and_infinity": (
        lambda x: (
            *torch.where(x > 1, math.nan, x).sort(dim=1, stable=True),
            *torch.where(x < 0, -math.inf, x).sort(dim=1, stable=True, descending=True),
            *torch.where(x > 0, math.inf, x).sort(dim=1, stable=True),
        ),
        one,
    ),
    "trace": (lambda x: torch.diagonal(x @ x.t()).sum(), table),
    "triangles": (lambda x: (x.tril(), x.triu(-1), x.t().tril(1)), table),
    "where": (lambda x, y: (torch.where(x > 0, x, y), x.masked_fill(x > 0, -1).clamp(0, 1)), two),
}

BACKWARD: dict[str, tuple[Function, Any]] = {
    "activations": (lambda x: (F.glu(x, -1), F.gelu(x), F.silu(x), F.softplus(x)), one),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), heads),
    "attention_over_static_sizes": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda b, s: [randn(b, 2, 6, 4) for _ in range(3)],
    ),
    "attention_across": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda b, s: [randn(2, 2, b, 4), randn(2, 2, s, 4), randn(2, 2, s, 4)],
    ),
    "batch_norm": (
        lambda x, w, c: F.batch_norm(x, None, None, w, c, training=True),
        lambda b, s: [randn(b, 4, s), randn(4), randn(4)],
    ),
    "batch_norm_at_inference": (
        lambda x, w, c, m, v: F.batch_norm(x, m.detach(), v.detach().abs(), w, c),
        lambda b, s: [randn(b, 4, s), randn(4), randn(4), randn(4), randn(4)],
    ),
    "broadcast": (lambda x, y: x * y + 2, lambda b, s: [randn(b, s, 4), randn(s, 1)]),
    "cat": (lambda x, y: (torch.cat([x, y], 1), torch.cat([x, y, x], 1), torch.stack([x, x])),
            lambda b, s: [randn(2, b, 4), randn(2, s, 4)]),
    "cat_and_chunk": (lambda x: torch.cat([x, -x], 1).chunk(2, 1)[1] * 2, one),
    "class_token": (
        lambda x, c: torch.cat([c.expand(x.shape[0], 1, 4), x], 1).softmax(1)[:, 0],
        lambda b, s: [randn(b, s, 4), randn(1, 1, 4)],
    ),
    "convolution": (
        lambda x, w, c: F.conv2d(x, w, c, padding=1),
        lambda b, s: [randn(b, 3, 6, 6), randn(4, 3, 3, 3), randn(4)],
    ),
    "convolution_along_a_varying_size": (
        lambda x, w, c: F.conv1d(x, w, c, stride=2, padding=1),
        lambda b, s: [randn(b, 3, s), randn(4, 3, 2), randn(4)],
    ),
    "convolution_dilated": (
        lambda x, w: F.conv2d(x, w, padding=(1, 2), dilation=2),
        lambda b, s: [randn(2, 2, b, s), randn(4, 2, 2, 2)],
    ),
    "convolution_transposed": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1),
        lambda b, s: [randn(b, 3, s), randn(3, 4, 3)],
    ),
    "cross_entropy": (
        lambda x, y: (
            F.cross_entropy(x, y),
            F.cross_entropy(x, y, ignore_index=2, reduction="sum"),
            F.cross_entropy(x, y, reduction="none"),
        ),
        lambda b, s: [randn(b, 6), randint(6, b)],
    ),
    "cross_entropy_of_sequences": (
        lambda x, y: F.cross_entropy(x.transpose(1, 2), y),
        lambda b, s: [randn(b, s, 6), randint(6, b, s)],
    ),
    "cross_entropy_weighted": (
        lambda x, w, y: F.cross_entropy(x, y, weight=w.detach().abs(), label_smoothing=0.1),
        lambda b, s: [randn(b, 6), randn(6), randint(6, b)],
    ),
    "einsum": (
        lambda x, y: (
            torch.einsum("bsd,btd->bst", x, y),
            torch.einsum("bsd,bse->de", x, y),
            torch.einsum("bsd,bsd->", x, y),
        ),
        two,
    ),
    "embedding": (
        lambda w, i: (F.embedding(i, w), F.embedding(i, w, padding_idx=0)),
        lambda b, s: [randn(11, 4), randint(11, b, s)],
    ),
    "embedding_of_a_varying_vocabulary": (
        lambda w, i: F.embedding(i, w),
        lambda b, s: [randn(s, 4), randint(s, b)],
    ),
    "expand": (
        lambda x: (
            x[:, :, None].expand(-1, -1, 3, -1).reshape(x.shape[0], -1),
            x.repeat(2, 1, 3),
            x.repeat_interleave(2, 1),
        ),
        one,
    ),
    "flip_and_roll": (lambda x: (x.flip(1), x.flip((0, 2)), x.roll(1, 1), x.roll(-2, 0)), one),
    "gather": (
        lambda x, i: x.gather(1, i),
        lambda b, s: [randn(b, s, 4), randint(s, b, 3, 4)],
    ),
    "gather_by_a_varying_index": (
        lambda x, i: x.gather(1, i),
        lambda b, s: [randn(b, 6), randint(6, b, s)],
    ),
    "group_norm": (
        lambda x, w, c: F.group_norm(x, 2, w, c),
        lambda b, s: [randn(b, 4, 3), randn(4), randn(4)],
    ),
    "group_norm_along_a_varying_size": (
        lambda x, w, c: F.group_norm(x, 2, w, c),
        lambda b, s: [randn(b, 4, s), randn(4), randn(4)],
    ),
    "index": (
        lambda x, i, j: (x[i, j], x[:, j], x[i, :2]),
        lambda b, s: [randn(b, s, 4), randint(b, 6), randint(s, 6)],
    ),
    "index_apart": (
        lambda x, i, j: x[i, :, j],
        lambda b, s: [randn(b, 3, s), randint(b, b, 1), randint(s, s)],
    ),
    "index_from_the_end": (lambda x, i: x[i], lambda b, s: [randn(s, 4), randint(s, b) - s]),
    "index_select": (
        lambda x, i: x.index_select(1, i),
        lambda b, s: [randn(b, s, 4), randint(s, 6)],
    ),
    "interpolate": (lambda x: F.interpolate(x, size=(9, 9), mode="bilinear"), images),
    "last_token": (
        lambda x, n: x[torch.arange(x.shape[0]), n],
        lambda b, s: [randn(b, s, 4), randint(s, b)],
    ),
    "layer_norm": (
        lambda x, w, c: F.layer_norm(x, (4,), w, c),
        lambda b, s: [randn(b, s, 4), randn(4), randn(4)],
    ),
    "layer_norm_over_varying_sizes": (lambda x: F.layer_norm(x, x.shape[1:]), one),
    "losses": (
        lambda x, y: (
            F.mse_loss(x, y),
            F.l1_loss(x, y),
            F.smooth_l1_loss(x, y),
            F.huber_loss(x, y),
            F.binary_cross_entropy_with_logits(x, y),
            F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
            F.kl_div(x, y.abs(), reduction="batchmean"),
            F.mse_loss(x, y, reduction="sum"),
        ),
        two,
    ),
    "masked_mean": (
        lambda x, m: (x * (m > 0)[..., None]).sum(1) / (m > 0).sum(1, keepdim=True).clamp(min=1),
        lambda b, s: [randn(b, s, 4), randn(b, s)],
    ),
    "pad": (lambda x: (F.pad(x, (1, 1)), F.pad(x, (0, 0, 2, 1)), F.pad(x, (0, 0, -1, 1))), one),
    "pooling": (
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)),
        images,
    ),
    "pooling_of_images_of_varying_size": (
        lambda x: (
            F.max_pool2d(x, 2),
            F.max_pool2d(x, 3, stride=2, padding=1),
            F.max_pool2d(x, 2, stride=1, return_indices=True)[1],
            F.avg_pool2d(x, 2, stride=1),
            F.avg_pool2d(x, 2, padding=1),
        ),
        lambda b, s: [randn(2, 3, b, s)],
    ),
    "positions": (
        lambda p, x: p[: x.shape[1]] + x,
        lambda b, s: [randn(20, 4), randn(b, s, 4)],
    ),
    "prelu": (
        lambda x, w: F.prelu(x.transpose(1, 2), w),
        lambda b, s: [randn(b, s, 4), randn(4)],
    ),
    "product": (
        lambda x, y: (x @ y, y @ x, x.t() @ y.t(), torch.outer(x[0], y[0])),
        lambda b, s: [randn(b, s), randn(s, b)],
    ),
    "product_in_batches": (
        lambda a, x, y: (torch.bmm(x, y), torch.baddbmm(a, x, y), x @ x.transpose(1, 2)),
        lambda b, s: [randn(b, s, s), randn(b, s, 4), randn(b, 4, s)],
    ),
    "product_plus": (
        lambda a, x, y: (torch.addmm(a, x, y), torch.addmv(a, x, y[:, 0]), x[0].dot(y[:, 0])),
        lambda b, s: [randn(b), randn(b, s), randn(s, b)],
    ),
    "reductions": (
        lambda x: (
            x.sum((0, 1)),
            x.mean(),
            x.mean(1),
            x.bfloat16().mean(1).float(),
            x.prod(1),
            x.logsumexp((0, 1)),
            x.amax(1),
            x.min(1)[0],
            x.norm(dim=1),
            x.nansum(),
        ),
        one,
    ),
    "norms": (
        lambda x: (
            torch.linalg.vector_norm(x, math.inf),
            torch.linalg.vector_norm(x, -1.5, dim=1),
            F.normalize(x, dim=1),
            F.cosine_similarity(x, x + 1, dim=1),
        ),
        one,
    ),
    "regroup": (
        lambda x: (
            x.reshape(-1, 4).softmax(0),
            x.transpose(0, 1).reshape(-1, 4).cumsum(0),
            x.transpose(0, 1).reshape(x.shape[0], -1),
            x.flatten().view(2, -1),
        ),
        one,
    ),
    "slices": (
        lambda x: (
            x[:, 1:],
            x[:, :-1],
            x[:, -1],
            x[1:, ::2],
            x[:, -2:],
            x[..., 1:3],
            x[:, :2],
            x[-1],
        ),
        one,
    ),
    "softmax": (lambda x: (x.softmax(1), x.log_softmax(0), x.softmax(-1)), one),
    "split": (
        lambda x: (x.split([1, 3], 2)[1], *x.unbind(2), x.split([1, x.shape[1] - 1], 1)[1]),
        one,
    ),
    "unfold": (lambda x: x.unfold(2, 2, 1), one),
    "variance": (
        lambda x: (x.var(), x.std(0), x.var((0, 1), unbiased=False), *torch.var_mean(x, 1)),
        one,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_values(name: str) -> None:
    check(*FORWARD[name])


@pytest.mark.parametrize("name", BACKWARD)
def test_values_and_gradients(name: str) -> None:
    function, make = BACKWARD[name]
    check(with_gradients(function), make, true_sizes=[(8, 8), (2, 2), (5, 7)])


@pytest.mark.parametrize("name", ["positions", "attention", "convolution_along_a_varying_size"])
def test_a_bucket_larger_than_a_fixed_size_beside_it(name: str) -> None:
    function, make = BACKWARD[name]
    check(with_gradients(function), make, true_sizes=[(5, 7)], bucket=32)
