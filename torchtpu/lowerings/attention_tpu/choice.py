"""Which attentions the kernels take, and the form in which they take their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu import config
from torchtpu.lowerings.attention_tpu.sizes import Sizes, fits

Array = Any
_DTYPES = frozenset(np.dtype(d) for d in (np.float32, jnp.bfloat16))


def taken(query: Array, key: Array, value: Array, bias: Array | None, causal: bool) -> Sizes | None:
    """Return the sizes of an attention that has kernels, None for any other.

    Arguments are those of torchtpu::attention. None too where TORCHTPU_ATTENTION is math.
    """
    if query.dtype not in _DTYPES or not query.dtype == key.dtype == value.dtype:
        return None
    batch, heads, rows, width = query.shape
    shape = None if bias is None else (*(1,) * (4 - bias.ndim), *bias.shape)
    sizes = Sizes(
        batch=batch,
        heads=heads,
        key_heads=key.shape[1],
        rows=rows,
        columns=key.shape[2],
        width=width,
        value_width=value.shape[3],
        itemsize=query.dtype.itemsize,
        causal=causal,
        bias=shape,
        bias_itemsize=0 if bias is None else _additive(bias.dtype).itemsize,
    )
    return sizes if fits(sizes) and config.get("attention") == "kernel" else None


def _additive(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(jnp.bfloat16) if dtype.kind == "b" else dtype


def forward_kernels(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    scale: Array | None,
    *,
    of: Sizes,
    precision: str | None,
) -> Sequence[Array]:
    """Return the result and the log-sum-exp; see forward.py."""
    from torchtpu.lowerings.attention_tpu import forward  # Pallas takes time to import

    inputs = _inputs(query, key, value, bias, scale, of)
    return forward.forward(inputs, of, _precision(of, precision))


def backward_kernels(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    out: Array,
    logsumexp: Array,
    scale: Array | None,
    *,
    of: Sizes,
    wanted: tuple[bool, bool, bool],
    precision: str | None,
) -> Sequence[Array]:
    """Return the wanted ones of the gradients of query, key and value; see backward.py."""
    from torchtpu.lowerings.attention_tpu import backward

    inputs = _inputs(query, key, value, bias, scale, of)
    given = backward.slopes_of(grad_out.astype(query.dtype), out, logsumexp)
    exact = _precision(of, precision)
    found: list[Array] = []
    if wanted[0]:
        found.append(backward.query_gradient(inputs, given, of, exact))
    if any(wanted[1:]):
        both = backward.key_value_gradients(inputs, given, of, exact)
        found += [g for g, is_wanted in zip(both, wanted[1:], strict=True) if is_wanted]
    return found


def _inputs(
    query: Array, key: Array, value: Array, bias: Array | None, scale: Array | None, of: Sizes
) -> Any:
    """The arrays in the form that the kernels take: an additive bias, a float32 scale."""
    from torchtpu.lowerings.attention_tpu.calls import Inputs

    if bias is not None:
        if bias.dtype == bool:
            bias = jnp.where(bias, 0.0, -jnp.inf).astype(_additive(bias.dtype))
        bias = bias.reshape(of.bias)
    factor = of.width**-0.5 if scale is None else scale
    scale = jnp.asarray(factor, jnp.float32)
    return Inputs(query=query, key=key, value=value, bias=bias, scale=scale)


def _precision(of: Sizes, asked: str | None) -> jax.lax.Precision:
    """Mosaic has float32 products of one bfloat16 pass or of six, and none between."""
    one_pass = of.itemsize == 2 or asked in (None, "default", "bfloat16")
    return jax.lax.Precision.DEFAULT if one_pass else jax.lax.Precision.HIGHEST
