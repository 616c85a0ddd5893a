"""Losses and their gradients; reduction is torch's 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from torchtpu.lowerings.registry import Array, lowering, rounded

_NONE, _MEAN, _SUM = 0, 1, 2


def reduce(loss: Array, reduction: int) -> Array:
    """The loss itself, its mean or its sum."""
    if reduction == _NONE:
        return loss
    return jnp.mean(loss) if reduction == _MEAN else jnp.sum(loss)


def spread(grad_output: Array, like: Array, reduction: int) -> Array:
    """The gradient of each element's loss from that of the reduced loss."""
    return grad_output / max(like.size, 1) if reduction == _MEAN else grad_output


def _class_weights(
    target: Array, weight: Array | None, ignore_index: int, classes: int, dtype: jnp.dtype
) -> tuple[Array, Array]:
    """The class of each element (0 where ignored) and its weight (0 where ignored)."""
    kept = target != ignore_index
    safe = jnp.where(kept, target, 0)
    each = jnp.ones((), dtype) if weight is None else jnp.take(weight, safe, mode="clip")
    return safe, jnp.where(kept, each, 0).astype(dtype)


def _nll(
    x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    """[N, C, *] and classes [N, *] -> loss and total weight."""
    safe, each = _class_weights(target, weight, ignore_index, x.shape[1], x.dtype)
    chosen = jnp.take_along_axis(x, safe[:, None], axis=1)[:, 0]
    loss = jnp.where(each == 0, 0, -chosen * each) if weight is None else -chosen * each
    total = jnp.sum(each)
    if reduction == _NONE:
        return loss, jnp.zeros((), x.dtype)
    return (jnp.sum(loss) / total if reduction == _MEAN else jnp.sum(loss)), total


def _nll_grad(
    grad_output: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    safe, each = _class_weights(target, weight, ignore_index, x.shape[1], x.dtype)
    grad = -grad_output * each
    if reduction == _MEAN:
        grad = jnp.where(each == 0, 0, grad / total_weight)
    classes = jnp.arange(x.shape[1]).reshape(-1, *(1,) * (x.ndim - 2))
    return jnp.where(classes == safe[:, None], grad[:, None], 0)


def _class_bounds(
    self: Array, target: Array, ignore_index: int, **_: Any
) -> list[tuple[Array, int, int]]:
    kept = jnp.where(target == ignore_index, 0, target)
    return [(kept, 1, self.shape[1 if self.ndim > 1 else 0])]


@lowering("aten::nll_loss_forward", compute="output", keep={"target"}, bounds=_class_bounds)
def nll_loss_forward(
    self: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    """-weight[target] * self[target] for [N, C] or [C], and the total weight."""
    if self.ndim == 1:
        loss, total = _nll(self[None], target.reshape(1), weight, reduction, ignore_index)
        return loss.reshape(()), total
    return _nll(self, target, weight, reduction, ignore_index)


@lowering("aten::nll_loss_backward", compute="output", keep={"target"})
def nll_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    """The gradient of nll_loss: non-zero at each target only."""
    rows = self.reshape(-1, self.shape[-1])
    grad = grad_output if grad_output.ndim or self.ndim > 1 else grad_output[None]
    result = _nll_grad(
        grad, rows, target.reshape(-1), weight, reduction, ignore_index, total_weight
    )
    return result.reshape(self.shape)


@lowering("aten::nll_loss2d_forward", compute="output", keep={"target"}, bounds=_class_bounds)
def nll_loss2d_forward(
    self: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    """nll_loss for [N, C, H, W]."""
    return _nll(self, target, weight, reduction, ignore_index)


@lowering("aten::nll_loss2d_backward", compute="output", keep={"target"})
def nll_loss2d_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    """The gradient of nll_loss2d."""
    return _nll_grad(grad_output, self, target, weight, reduction, ignore_index, total_weight)


@lowering("aten::mse_loss", compute="output")
def mse_loss(self: Array, target: Array, reduction: int = 1) -> Array:
    """(self - target)^2."""
    return reduce(jnp.square(self - target), reduction)


@lowering("aten::mse_loss_backward", compute="output")
def mse_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int) -> Array:
    """2 (self - target)."""
    error = self - target
    return 2 * error * spread(grad_output, error, reduction)


@lowering("aten::smooth_l1_loss", compute="output", constants={"beta": (0,)})
def smooth_l1_loss(
    self: Array, target: Array, reduction: int = 1, beta: Array | float = 1
) -> Array:
    """error^2 / (2 beta) below beta, |error| - beta / 2 above."""
    error = jnp.abs(self - target)
    if not isinstance(beta, jax.Array) and beta == 0:
        return reduce(error, reduction)
    return reduce(
        jnp.where(error < beta, 0.5 * error * error / beta, error - 0.5 * beta), reduction
    )


@lowering("aten::smooth_l1_loss_backward", compute="output")
def smooth_l1_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, beta: Array
) -> Array:
    """error / beta below beta, sign(error) above."""
    error = self - target
    slope = jnp.where(jnp.abs(error) < beta, error / beta, jnp.sign(error))
    return slope * spread(grad_output, error, reduction)


@lowering("aten::huber_loss", compute="output")
def huber_loss(self: Array, target: Array, reduction: int = 1, delta: Array | float = 1) -> Array:
    """error^2 / 2 up to delta, delta (|error| - delta / 2) above."""
    error = jnp.abs(self - target)
    loss = jnp.where(error <= delta, 0.5 * error * error, delta * (error - 0.5 * delta))
    return reduce(loss, reduction)


@lowering("aten::huber_loss_backward", compute="output")
def huber_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, delta: Array
) -> Array:
    """error clamped to [-delta, delta]."""
    error = self - target
    return jnp.clip(error, -delta, delta) * spread(grad_output, error, reduction)


@lowering("aten::binary_cross_entropy", compute="output")
def binary_cross_entropy(
    self: Array, target: Array, weight: Array | None = None, reduction: int = 1
) -> Array:
    """-(t log p + (1 - t) log(1 - p)); logarithms are at least -100, as in torch."""
    loss = (target - 1) * jnp.maximum(jnp.log1p(-self), -100)
    loss = loss - target * jnp.maximum(jnp.log(self), -100)
    return reduce(loss if weight is None else loss * weight, reduction)


@lowering("aten::binary_cross_entropy_backward", compute="output")
def binary_cross_entropy_backward(
    grad_output: Array, self: Array, target: Array, weight: Array | None = None, reduction: int = 1
) -> Array:
    """(p - t) / (p (1 - p)), the denominator at least 1e-12."""
    slope = (self - target) / jnp.maximum((1 - self) * self, 1e-12)
    slope = slope * spread(grad_output, self, reduction)
    return slope if weight is None else slope * weight


@lowering("aten::binary_cross_entropy_with_logits", compute="output", half=True)
def binary_cross_entropy_with_logits(
    self: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = 1,
    half: Any = None,
) -> Array:
    """(1 - t) x - (1 + (pos_weight - 1) t) log_sigmoid(x); torch rounds halves at each step."""
    penalty = rounded(jax.nn.log_sigmoid(self), half)
    if pos_weight is not None:
        factor = rounded(rounded(pos_weight - 1, half) * target, half)
        penalty = rounded(rounded(1 + factor, half) * penalty, half)
    loss = rounded(rounded(rounded(1 - target, half) * self, half) - penalty, half)
    return reduce(loss if weight is None else rounded(loss * weight, half), reduction)


@lowering("aten::soft_margin_loss", compute="output")
def soft_margin_loss(self: Array, target: Array, reduction: int = 1) -> Array:
    """log(1 + exp(-target * self))."""
    return reduce(jnp.log1p(jnp.exp(-target * self)), reduction)


@lowering("aten::soft_margin_loss_backward", compute="output")
def soft_margin_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int
) -> Array:
    """-target * sigmoid(-target * self)."""
    slope = -target * jax.nn.sigmoid(-target * self)
    return slope * spread(grad_output, self, reduction)


def _rows(x: Array) -> Array:
    """[N, C], [C] or [] -> [N, C]."""
    return x.reshape(-1, x.shape[-1] if x.ndim else 1)


def _margins(
    x: Array, target: Array, margin: Array | float, weight: Array | None
) -> tuple[Array, Array]:
    """For [N, C]: violated margins with the target's own set to 0, and each row's weight / C."""
    chosen = jnp.take_along_axis(x, target[:, None], axis=1)
    own = jnp.arange(x.shape[1]) == target[:, None]
    violated = jnp.where(own, 0, jnp.maximum(margin - chosen + x, 0))
    rows = (
        jnp.ones((), x.dtype) if weight is None else jnp.take(weight, target, mode="clip")[:, None]
    )
    return violated, rows / x.shape[1]


@lowering("aten::multi_margin_loss", compute="output", keep={"target"}, static={"p"})
def multi_margin_loss(
    self: Array,
    target: Array,
    p: float = 1,
    margin: Array | float = 1,
    weight: Array | None = None,
    reduction: int = 1,
) -> Array:
    """Mean over classes of max(0, margin - self[target] + self)^p."""
    rows = _rows(self)
    violated, each = _margins(rows, target.reshape(-1), margin, weight)
    loss = jnp.sum((violated if p == 1 else violated * violated) * each, axis=1)
    return reduce(loss if self.ndim > 1 else loss[0], reduction)


@lowering("aten::multi_margin_loss_backward", compute="output", keep={"target"}, static={"p"})
def multi_margin_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    p: float,
    margin: Array,
    weight: Array | None = None,
    reduction: int = 1,
) -> Array:
    """The gradient of multi_margin_loss."""
    rows, target = _rows(self), target.reshape(-1)
    violated, each = _margins(rows, target, margin, weight)
    slope = jnp.where(violated > 0, each, 0) if p == 1 else 2 * violated * each
    own = jnp.arange(rows.shape[1]) == target[:, None]
    slope = jnp.where(own, -jnp.sum(slope, axis=1, keepdims=True), slope)
    grad = grad_output.reshape(-1, 1) / (rows.shape[0] if reduction == _MEAN else 1)
    return (slope * grad).reshape(self.shape)


@lowering("aten::multilabel_margin_loss_forward", compute="output", keep={"target"})
def multilabel_margin_loss_forward(
    self: Array, target: Array, reduction: int
) -> tuple[Array, Array]:
    """Mean over a label and another class of max(0, 1 - self[label] + self[other])."""
    rows, labels = _rows(self), _rows(target)
    _, is_label, violated = _label_margins(rows, labels)
    loss = jnp.sum(violated, axis=(1, 2)) / max(rows.shape[1], 1)
    return reduce(loss if self.ndim > 1 else loss[0], reduction), is_label.reshape(target.shape)


@lowering("aten::multilabel_margin_loss_backward", compute="output", keep={"target", "is_target"})
def multilabel_margin_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, is_target: Array
) -> Array:
    """The gradient of multilabel_margin_loss."""
    rows, labels = _rows(self), _rows(target)
    listed, _, violated = _label_margins(rows, labels)
    slope = (violated > 0).astype(rows.dtype) / max(rows.shape[1], 1)  # [N, L, C]
    from_labels = jnp.sum(jnp.where(listed, -jnp.sum(slope, 2)[..., None], 0), axis=1)
    grad = grad_output.reshape(-1, 1) / (rows.shape[0] if reduction == _MEAN else 1)
    return ((jnp.sum(slope, axis=1) + from_labels) * grad).reshape(self.shape)


def _label_margins(rows: Array, labels: Array) -> tuple[Array, Array, Array]:
    """Which class each valid label names [N, L, C], which classes are labels, violated margins."""
    valid = jnp.cumprod(labels >= 0, axis=1).astype(bool)  # the first -1 ends a row's labels
    classes = jnp.arange(rows.shape[1])
    listed = valid[..., None] & (labels[..., None] == classes)
    is_label = jnp.any(listed, axis=1)
    chosen = jnp.take_along_axis(rows, jnp.maximum(labels, 0), axis=1)
    margin = jnp.maximum(1 - chosen[..., None] + rows[:, None], 0)
    return listed, is_label, jnp.where(valid[..., None] & ~is_label[:, None], margin, 0)
