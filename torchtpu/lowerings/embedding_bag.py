"""Bags of embeddings: sums, means and maxima of the rows that each bag names."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torchtpu.lowerings.registry import Array, lowering

_SUM, _MEAN, _MAX = 0, 1, 2


def _bags(indices: Array, offsets: Array, count: int) -> Array:
    """The bag of each index."""
    places = jnp.arange(indices.size)
    return jnp.clip(jnp.searchsorted(offsets[:count], places, side="right") - 1, 0)


def _saved_bags(saved: Array, indices: Array, offsets: Array, grad: Array) -> Array:
    """The bag of each index; torch's CPU saves none for sums of floats."""
    return saved if saved.size else _bags(indices, offsets, grad.shape[0])


@lowering(
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
    compute="output",
    keep={"indices", "offsets"},
)
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """Reduced rows [bags, D], the bag of each index, bag sizes, and for max the rows chosen."""
    count = offsets.size - include_last_offset
    bags = _bags(indices, offsets, count)
    kept = indices != padding_idx
    rows = jnp.take(weight, indices, axis=0, mode="clip")
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    sizes = jax.ops.segment_sum(kept.astype(indices.dtype), bags, offsets.size)
    if mode == _MAX:
        best, chosen = _largest(rows, indices, bags, kept, count)
        return jnp.where(sizes[:count, None] > 0, best, 0), bags, sizes, chosen
    total = jax.ops.segment_sum(jnp.where(kept[:, None], rows, 0), bags, count)
    if mode == _MEAN:
        total = total / jnp.maximum(sizes[:count, None], 1)
    return total, bags, sizes, jnp.zeros((0,), indices.dtype)


def _largest(
    rows: Array, indices: Array, bags: Array, kept: Array, count: int
) -> tuple[Array, Array]:
    """The maximum of each bag and column, and the row of weight that it comes from."""
    rows = jnp.where(kept[:, None], rows, -jnp.inf)
    best = jax.ops.segment_max(rows, bags, count)
    hits = kept[:, None] & (rows == best[bags])
    place = jnp.where(hits, jnp.arange(indices.size)[:, None], indices.size)
    first = jax.ops.segment_min(place, bags, count)
    found = jnp.take(indices, jnp.minimum(first, indices.size - 1), mode="clip")
    return best, jnp.where(first < indices.size, found, 0)


@lowering(
    "aten::_embedding_bag_dense_backward",
    compute="output",
    keep={"indices", "offset2bag", "bag_size", "maximum_indices"},
)
def embedding_bag_dense_backward(
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    """The gradient of weight [num_weights, D]."""
    base = jnp.zeros((num_weights, grad.shape[1]), grad.dtype)
    if mode == _MAX:
        columns = jnp.arange(grad.shape[1])
        filled = bag_size[: grad.shape[0], None] > 0
        return base.at[maximum_indices, columns].add(jnp.where(filled, grad, 0))
    rows = grad[offset2bag]
    if mode == _MEAN:
        rows = rows / jnp.maximum(bag_size[offset2bag], 1)[:, None]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    if scale_grad_by_freq:
        counts = jnp.zeros(num_weights, grad.dtype).at[indices].add(1)
        rows = rows / counts[indices][:, None]
    return base.at[indices].add(jnp.where((indices != padding_idx)[:, None], rows, 0), mode="drop")


@lowering(
    "aten::_embedding_bag_backward",
    compute="output",
    keep={"indices", "offsets", "offset2bag", "bag_size", "maximum_indices"},
)
def embedding_bag_backward(
    grad: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    """The gradient of weight; dense, also where sparse=True asked for a sparse one."""
    return embedding_bag_dense_backward(
        grad,
        indices,
        _saved_bags(offset2bag, indices, offsets, grad),
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lowering(
    "aten::_embedding_bag_per_sample_weights_backward",
    compute="output",
    keep={"indices", "offsets", "offset2bag"},
)
def embedding_bag_per_sample_weights_backward(
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Array:
    """The gradient of per_sample_weights: grad of the bag times the row."""
    bags = _saved_bags(offset2bag, indices, offsets, grad)
    rows = jnp.sum(grad[bags] * jnp.take(weight, indices, axis=0, mode="clip"), axis=1)
    return jnp.where(indices == padding_idx, 0, rows)


@lowering("aten::embedding_renorm", compute="output", keep={"indices"})
def embedding_renorm(self: Array, indices: Array, max_norm: Array, norm_type: Array) -> Array:
    """self with the named rows scaled to at most max_norm."""
    norms = jnp.sum(jnp.abs(self) ** norm_type, axis=1, keepdims=True) ** (1 / norm_type)
    named = jnp.zeros(self.shape[0], bool).at[indices.reshape(-1)].set(True, mode="drop")
    long = named[:, None] & (norms > max_norm)
    return jnp.where(long, self * (max_norm / (norms + 1e-7)), self)
