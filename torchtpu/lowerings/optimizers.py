"""Fused optimizer steps: all parameters, gradients and states of a step in one program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from torchtpu.lowerings.registry import Array, lowering

Arrays = tuple[Array, ...]


def _lists(rows: Iterable[tuple[Array, ...]], *olds: Arrays) -> Arrays:
    """One flat tuple, list after list, of rows of new values; lists that are empty stay so."""
    columns = list(zip(*rows, strict=True)) if olds[0] else [() for _ in olds]
    return tuple(v for column, old in zip(columns, olds, strict=True) if old for v in column)


def _unscaled(grad: Array, scale: Array | None) -> Array:
    return grad if scale is None else grad / scale.astype(grad.dtype)


def _unless(skip: Array | None, new: Array, old: Array) -> Array:
    """The old value where the gradients were not finite."""
    return (
        new.astype(old.dtype) if skip is None else jnp.where(skip == 1, old, new.astype(old.dtype))
    )


def _wide(x: Array) -> Array:
    return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x


def _corrections(
    lr: Array, beta1: Array, beta2: Array, steps: Arrays, types: Sequence[Any]
) -> list[tuple[Array, Array]]:
    """lr / (1 - beta1^step) and 1 / sqrt(1 - beta2^step) for each parameter, in its dtype.

    Vectors of them, one for each dtype, spare a kernel per parameter.
    """
    found: dict[int, tuple[Array, Array]] = {}
    for dtype in dict.fromkeys(types):
        group = [i for i, t in enumerate(types) if t == dtype]
        counts = jnp.stack([steps[i].reshape(()) for i in group]).astype(dtype)
        rate, b1, b2 = (jnp.asarray(v).astype(dtype) for v in (lr, beta1, beta2))
        vectors = rate / (1 - b1**counts), 1 / jnp.sqrt(1 - b2**counts)
        found |= {i: (vectors[0][n], vectors[1][n]) for n, i in enumerate(group)}
    return [found[i] for i in range(len(types))]


def _adam(decoupled: bool) -> Callable[..., Arrays]:
    def step(
        self: Arrays,
        grads: Arrays,
        exp_avgs: Arrays,
        exp_avg_sqs: Arrays,
        max_exp_avg_sqs: Arrays,
        state_steps: Arrays,
        lr: Array,
        beta1: Array,
        beta2: Array,
        weight_decay: Array,
        eps: Array,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Array | None = None,
        found_inf: Array | None = None,
    ) -> Arrays:
        """Kingma and Ba (2015), algorithm 1; decay decoupled as in Loshchilov and Hutter (2019)."""
        rows = []
        types = [_wide(p).dtype for p in self]
        corrections = _corrections(lr, beta1, beta2, state_steps, types)
        for i, p in enumerate(self):
            g = _unscaled(grads[i], grad_scale)
            param, grad = _wide(p), -_wide(g) if maximize else _wide(g)
            dtype = param.dtype
            rate, b1, b2, decay, small = (
                jnp.asarray(v).astype(dtype) for v in (lr, beta1, beta2, weight_decay, eps)
            )
            if decoupled:
                param = param * (1 - rate * decay)
            else:
                grad = grad + decay * param
            mean = _wide(exp_avgs[i])
            mean = mean + (grad - mean) * (1 - b1)
            square = b2 * _wide(exp_avg_sqs[i]) + (1 - b2) * grad * grad
            largest = jnp.maximum(_wide(max_exp_avg_sqs[i]), square) if amsgrad else square
            first, second = corrections[i]
            param = param - first * mean / (jnp.sqrt(largest) * second + small)
            olds = [p, exp_avgs[i], exp_avg_sqs[i]]
            news = [param, mean, square]
            if amsgrad:
                olds.append(max_exp_avg_sqs[i])
                news.append(largest)
            kept = [_unless(found_inf, n, o) for n, o in zip(news, olds, strict=True)]
            rows.append((kept[0], _unless(found_inf, g, grads[i]), *kept[1:]))
        states = (exp_avgs, exp_avg_sqs) + ((max_exp_avg_sqs,) if amsgrad else ())
        updated = _lists(rows, self, grads, *states)
        return updated if amsgrad else (*updated, *max_exp_avg_sqs)

    return step


lowering("aten::_fused_adam", "aten::_fused_adam.tensor_lr")(_adam(decoupled=False))
lowering("aten::_fused_adamw", "aten::_fused_adamw.tensor_lr")(_adam(decoupled=True))


@lowering("aten::_fused_sgd", "aten::_fused_sgd.tensor_lr")
def sgd(
    self: Arrays,
    grads: Arrays,
    momentum_buffer_list: Arrays,
    weight_decay: Array,
    momentum: Array,
    lr: Array,
    dampening: Array,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> Arrays:
    """Stochastic gradient descent, with momentum where there are buffers for it."""
    rows = []
    for i, p in enumerate(self):
        g = _unscaled(grads[i], grad_scale)
        param, grad = _wide(p), -_wide(g) if maximize else _wide(g)
        rate, decay, keep, damp = (
            jnp.asarray(v).astype(param.dtype) for v in (lr, weight_decay, momentum, dampening)
        )
        grad = grad + decay * param
        row: list[Any] = [_unless(found_inf, g, grads[i])]
        if momentum_buffer_list:
            old = momentum_buffer_list[i]
            velocity = grad if is_first_step else keep * _wide(old) + (1 - damp) * grad
            grad = grad + keep * velocity if nesterov else velocity
            row.append(_unless(found_inf, velocity, old))
        rows.append((_unless(found_inf, param - rate * grad, p), *row))
    return _lists(rows, *(c for c in (self, grads, momentum_buffer_list) if c))


@lowering("aten::_fused_adagrad.tensor_lr")
def adagrad(
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    lr: Array,
    lr_decay: Array,
    weight_decay: Array,
    eps: Array,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> Arrays:
    """Duchi, Hazan and Singer (2011): steps divided by the root of the summed squares."""
    rows = []
    for i, p in enumerate(self):
        g = _unscaled(grads[i], grad_scale)
        param, grad = _wide(p), -_wide(g) if maximize else _wide(g)
        rate, slower, decay, small = (
            jnp.asarray(v).astype(param.dtype) for v in (lr, lr_decay, weight_decay, eps)
        )
        grad = grad + decay * param
        total = _wide(state_sums[i]) + grad * grad
        rate = rate / (1 + (state_steps[i].astype(param.dtype) - 1) * slower)
        param = param - rate * grad / (jnp.sqrt(total) + small)
        news, olds = (param, g, total), (p, grads[i], state_sums[i])
        rows.append(tuple(_unless(found_inf, n, o) for n, o in zip(news, olds, strict=True)))
    return _lists(rows, self, grads, state_sums)


@lowering("aten::_fused_adagrad")
def adagrad_with_steps(
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    lr: Array,
    lr_decay: Array,
    weight_decay: Array,
    eps: Array,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> Arrays:
    """The same; this overload says that it writes the steps too, which stay as they are."""
    settings = (lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf)
    return (*adagrad(self, grads, state_sums, state_steps, *settings), *state_steps)
