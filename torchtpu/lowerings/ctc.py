"""Connectionist temporal classification (Graves et al. 2006): a scan over time in log space."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering


def _labels(targets: Array, starts: Array, longest: int, blank: int) -> Array:
    """[B, 2 L + 1]: each row's labels with blanks between and around them."""
    place = jnp.clip(starts[:, None] + jnp.arange(longest), 0, max(targets.size - 1, 0))
    rows = (
        jnp.take(targets.reshape(-1), place) if targets.size else jnp.zeros(place.shape, jnp.int64)
    )
    extended = jnp.full((starts.shape[0], 2 * longest + 1), blank, rows.dtype)
    return extended.at[:, 1::2].set(rows)


def _alphas(
    log_probs: Array, labels: Array, input_lengths: Array, target_lengths: Array, blank: int
) -> tuple[Array, Array]:
    """The negative log likelihood [B], and log alpha [B, T, 2 L + 1]."""
    low = jnp.array(-jnp.inf, log_probs.dtype)
    steps = jnp.arange(labels.shape[1])
    skips = (steps >= 2) & (labels != blank) & (labels != jnp.roll(labels, 2, 1))
    emitted = jnp.take_along_axis(log_probs, labels[None], axis=2)  # [T, B, 2 L + 1]

    def shifted(alpha: Array, by: int) -> Array:
        return jnp.where(steps >= by, jnp.roll(alpha, by, 1), low)

    def advance(alpha: Array, emission: Array) -> tuple[Array, Array]:
        both = jnp.stack([alpha, shifted(alpha, 1), jnp.where(skips, shifted(alpha, 2), low)])
        top = jnp.max(both, 0)
        top = lax.stop_gradient(jnp.where(jnp.isneginf(top), 0, top))
        total = jnp.sum(jnp.exp(both - top), 0)
        safe = jnp.where(total > 0, total, 1)
        after = jnp.where(total > 0, jnp.log(safe) + top + emission, low)
        return after, after

    first = jnp.where((steps < 2) & (steps <= 2 * target_lengths[:, None]), emitted[0], low)
    _, later = lax.scan(advance, first, emitted[1:])
    alphas = jnp.concatenate([first[None], later])  # [T, B, 2 L + 1]
    final = jnp.take_along_axis(alphas, (input_lengths - 1)[None, :, None], axis=0)[0]
    last = jnp.take_along_axis(final, 2 * target_lengths[:, None], 1)[:, 0]
    before = jnp.take_along_axis(final, jnp.maximum(2 * target_lengths - 1, 0)[:, None], 1)[:, 0]
    before = jnp.where(target_lengths > 0, before, low)
    top = jnp.maximum(last, before)
    top = lax.stop_gradient(jnp.where(jnp.isneginf(top), 0, top))
    total = jnp.exp(last - top) + jnp.exp(before - top)
    likelihood = jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1)) + top, low)
    return -likelihood, jnp.swapaxes(alphas, 0, 1)


@lowering(
    "torchtpu::ctc_loss",
    compute="output",
    keep={"targets", "starts", "input_lengths", "target_lengths"},
)
def ctc_loss(
    log_probs: Array,
    targets: Array,
    starts: Array,
    input_lengths: Array,
    target_lengths: Array,
    longest: int,
    blank: int,
) -> tuple[Array, Array]:
    """log_probs [T, B, C] -> losses [B] and log alpha."""
    labels = _labels(targets, starts, longest, blank)
    return _alphas(log_probs, labels, input_lengths, target_lengths, blank)


@lowering(
    "torchtpu::ctc_loss_backward",
    compute="output",
    keep={"targets", "starts", "input_lengths", "target_lengths"},
)
def ctc_loss_backward(
    grad: Array,
    log_probs: Array,
    targets: Array,
    starts: Array,
    input_lengths: Array,
    target_lengths: Array,
    neg_log_likelihood: Array,
    longest: int,
    blank: int,
    zero_infinity: bool,
) -> Array:
    """The gradient before log_softmax, as torch defines it: probabilities minus posteriors."""
    labels = _labels(targets, starts, longest, blank)
    _, back = jax.vjp(
        lambda x: _alphas(x, labels, input_lengths, target_lengths, blank)[0], log_probs
    )
    (posterior,) = back(jnp.ones_like(neg_log_likelihood))
    timely = jnp.arange(log_probs.shape[0])[:, None, None] < input_lengths[None, :, None]
    slope = jnp.where(timely, jnp.exp(log_probs) + posterior, 0)
    if zero_infinity:
        slope = jnp.where(jnp.isposinf(neg_log_likelihood)[None, :, None], 0, slope)
    else:
        slope = jnp.where(jnp.isposinf(neg_log_likelihood)[None, :, None] & timely, jnp.nan, slope)
    return slope * grad[None, :, None]
