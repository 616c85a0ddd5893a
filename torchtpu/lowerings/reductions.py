"""Reductions over dims: sums, products, extrema, moments, norms, truth and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowerings.elementary import real_dtype
from torchtpu.lowerings.registry import Array, convert, dims_of, lowering

Dims = int | Sequence[int] | None


def axes_of(x: Array, dim: Dims) -> tuple[int, ...]:
    """Return the axes to reduce: all where dim is None or (); none of a 0-dim array."""
    return dims_of(dim, x.ndim) if x.ndim else ()


def widened(x: Array) -> Array:
    """bfloat16 and float16 as float32, in which torch accumulates them."""
    return x.astype(jnp.float32) if is_half(x) else x


def is_half(x: Array) -> bool:
    """Tell whether an array is of a two-byte float."""
    return bool(jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 2)


@lowering("aten::sum", "aten::sum.dim_IntList", compute="output")
def sum_(self: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """Sum over dims; integers in int64."""
    return jnp.sum(self, axis=axes_of(self, dim), keepdims=keepdim, dtype=self.dtype)


@lowering("aten::nansum", compute="output")
def nansum(self: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """Sum over dims that counts NaN as 0."""
    self = jnp.where(jnp.isnan(self), 0, self) if jnp.issubdtype(self.dtype, jnp.inexact) else self
    return jnp.sum(self, axis=axes_of(self, dim), keepdims=keepdim, dtype=self.dtype)


@lowering("aten::mean", "aten::mean.dim", compute="output")
def mean(self: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """Sum over dims divided by the count; NaN of nothing."""
    axes = axes_of(self, dim)
    return jnp.sum(self, axis=axes, keepdims=keepdim) / jnp.asarray(_count(self, axes), self.dtype)


@lowering("aten::prod", "aten::prod.dim_int", compute="output")
def prod(self: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """Product over dims; integers in int64."""
    return jnp.prod(self, axis=axes_of(self, dim), keepdims=keepdim, dtype=self.dtype)


def _count(x: Array, axes: Sequence[int]) -> int:
    return int(np.prod([x.shape[a] for a in axes], dtype=np.int64))


@lowering("aten::amax")
def amax(self: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    """Largest element over dims; NaN where there is one."""
    return jnp.max(self, axis=axes_of(self, dim), keepdims=keepdim)


@lowering("aten::amin")
def amin(self: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    """Smallest element over dims; NaN where there is one."""
    return jnp.min(self, axis=axes_of(self, dim), keepdims=keepdim)


@lowering("aten::aminmax", "aten::_aminmax", "aten::_aminmax.dim")
def aminmax(self: Array, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    """Smallest and largest element."""
    return amin(self, dim, keepdim), amax(self, dim, keepdim)


@lowering("aten::max")
def max_(self: Array) -> Array:
    """Largest of all elements."""
    return jnp.max(self)


@lowering("aten::min")
def min_(self: Array) -> Array:
    """Smallest of all elements."""
    return jnp.min(self)


def arg_extremum(x: Array, dim: int | None, keepdim: bool, arg: Callable[..., Array]) -> Array:
    """Index of the first extremum along dim (of the flat array where dim is None); NaN is one."""
    if x.ndim == 0:
        return jnp.zeros((), jnp.int64)
    flat = x.reshape(-1) if dim is None else x
    flat = flat.astype(jnp.uint8) if flat.dtype == bool else flat
    axis = 0 if dim is None else dim % x.ndim
    index = arg(flat, axis, np.int32 if flat.shape[axis] < 2**31 else np.int64)
    if keepdim:
        return index.reshape((1,) * x.ndim) if dim is None else jnp.expand_dims(index, axis)
    return index


@lowering("aten::argmax")
def argmax(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Index of the largest element."""
    return arg_extremum(self, dim, keepdim, lax.argmax)


@lowering("aten::argmin")
def argmin(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Index of the smallest element."""
    return arg_extremum(self, dim, keepdim, lax.argmin)


@lowering("aten::max.dim")
def max_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """Largest element along dim and its index."""
    return amax(self, dim, keepdim), argmax(self, dim, keepdim)


@lowering("aten::min.dim")
def min_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """Smallest element along dim and its index."""
    return amin(self, dim, keepdim), argmin(self, dim, keepdim)


@lowering("aten::any", "aten::any.dim", "aten::any.dims")
def any_(self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Tell whether an element is not 0."""
    return jnp.any(convert(self, bool), axis=_truth_axes(self, dim), keepdims=keepdim)


@lowering("aten::all", "aten::all.dim", "aten::all.dims")
def all_(self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Tell whether no element is 0."""
    return jnp.all(convert(self, bool), axis=_truth_axes(self, dim), keepdims=keepdim)


def _truth_axes(x: Array, dim: Dims) -> tuple[int, ...]:
    """An empty list of dims reduces nothing here, unlike everywhere else."""
    return () if dim == () else axes_of(x, dim)


@lowering("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(self: Array, dim: Dims = None) -> Array:
    """Number of elements that are not 0."""
    return jnp.sum(convert(self, bool), axis=axes_of(self, dim), dtype=jnp.int64)


_ONE_PASS = {"correction": (0, 1)}


def moments(x: Array, dim: Dims, correction: Any, keepdim: bool) -> tuple[Array, Array]:
    """Variance (divided by max(0, count - correction)) and mean over dims, in two passes."""
    x, axes = widened(x), axes_of(x, dim)
    count = _count(x, axes)
    average = jnp.sum(x, axis=axes, keepdims=True) / jnp.asarray(count, x.dtype)
    away = x - average
    square = (away * jnp.conj(away)).real if x.dtype.kind == "c" else away * away
    divisor = jnp.maximum(count - (1 if correction is None else correction), 0)
    variance = jnp.sum(square, axis=axes, keepdims=keepdim) / jnp.asarray(divisor, square.dtype)
    return variance, average if keepdim else average.reshape(variance.shape)


@lowering("aten::var.correction", constants=_ONE_PASS)
def var(self: Array, dim: Dims = None, correction: Any = None, keepdim: bool = False) -> Array:
    """Variance over dims."""
    return moments(self, dim, correction, keepdim)[0]


@lowering("aten::std.correction", constants=_ONE_PASS)
def std(self: Array, dim: Dims = None, correction: Any = None, keepdim: bool = False) -> Array:
    """Square root of the variance over dims."""
    return jnp.sqrt(moments(self, dim, correction, keepdim)[0])


@lowering("aten::var_mean.correction", constants=_ONE_PASS)
def var_mean(
    self: Array, dim: Dims = None, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """Variance and mean over dims."""
    return moments(self, dim, correction, keepdim)


@lowering("aten::std_mean.correction", constants=_ONE_PASS)
def std_mean(
    self: Array, dim: Dims = None, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """Square root of the variance, and mean, over dims."""
    variance, average = moments(self, dim, correction, keepdim)
    return jnp.sqrt(variance), average


@lowering("aten::linalg_vector_norm", static={"ord"})
def vector_norm(
    self: Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    """(sum |x| ** ord) ** (1 / ord); inf: largest |x|, -inf: smallest, 0: count of nonzeros."""
    x = widened(self if dtype is None else convert(self, dtype))
    axes = axes_of(x, dim)
    size = jnp.abs(x)
    if ord == float("inf"):
        return jnp.max(size, axis=axes, keepdims=keepdim, initial=None if _count(x, axes) else 0)
    if ord == -float("inf"):
        return jnp.min(size, axis=axes, keepdims=keepdim)
    if ord == 0:
        return jnp.sum(x != 0, axis=axes, keepdims=keepdim).astype(size.dtype)
    if ord == 1:
        return jnp.sum(size, axis=axes, keepdims=keepdim)
    if ord == 2:
        square = x.real**2 + x.imag**2 if x.dtype.kind == "c" else x * x
        return jnp.sqrt(jnp.sum(square, axis=axes, keepdims=keepdim))
    return jnp.sum(size**ord, axis=axes, keepdims=keepdim) ** (1.0 / ord)


@lowering(
    "aten::norm.Scalar",
    "aten::norm.ScalarOpt_dim",
    "aten::norm.ScalarOpt_dim_dtype",
    "aten::norm.ScalarOpt_dtype",
    static={"p"},
)
def norm(
    self: Array, p: float | None = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    """The vector norm of order p (2 where it is None)."""
    return vector_norm(self, 2 if p is None else p, dim, keepdim, dtype)


@lowering("aten::logsumexp", compute="output")
def logsumexp(self: Array, dim: Dims, keepdim: bool = False) -> Array:
    """log(sum(exp(x))) over dims."""
    axes = axes_of(self, dim)
    if _count(self, axes) == 0:
        return jnp.log(jnp.sum(jnp.exp(self), axis=axes, keepdims=keepdim))
    if not axes:
        return self
    return jax.nn.logsumexp(self, axis=axes, keepdims=keepdim)


def _shifted(x: Array, dim: int) -> Array:
    return x - lax.stop_gradient(jnp.max(x, axis=dim, keepdims=True, initial=-jnp.inf))


def _along(x: Array, dim: int) -> tuple[Array, int]:
    """A 0-dim array is one of one element."""
    return (x, dim % x.ndim) if x.ndim else (x.reshape(1), 0)


@lowering("aten::_softmax", compute="output")
def softmax(self: Array, dim: int, half_to_float: bool = False) -> Array:
    """exp(x) / sum(exp(x)) along dim."""
    x, axis = _along(self, dim)
    exp = jnp.exp(_shifted(x, axis))
    return (exp / jnp.sum(exp, axis=axis, keepdims=True)).reshape(self.shape)


@lowering("aten::_log_softmax", compute="output")
def log_softmax(self: Array, dim: int, half_to_float: bool = False) -> Array:
    """x - log(sum(exp(x))) along dim."""
    x, axis = _along(self, dim)
    shifted = _shifted(x, axis)
    return (shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))).reshape(
        self.shape
    )


@lowering("aten::_softmax_backward_data", compute="output")
def softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    """y (grad - sum(grad y)) along dim."""
    product, axis = _along(grad_output * output, dim)
    total = jnp.sum(product, axis=axis, keepdims=True)
    return (product - output.reshape(product.shape) * total).reshape(output.shape)


@lowering("aten::_log_softmax_backward_data", compute="output")
def log_softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    """grad - exp(y) sum(grad) along dim."""
    grad, axis = _along(grad_output, dim)
    total = jnp.sum(grad, axis=axis, keepdims=True)
    return (grad - jnp.exp(output.reshape(grad.shape)) * total).reshape(output.shape)


@lowering("aten::_safe_softmax", compute="output")
def safe_softmax(self: Array, dim: int, dtype: Any = None) -> Array:
    """softmax along dim; 0 where all of a row is -inf."""
    x, axis = _along(self, dim)
    masked = jnp.all(x == -jnp.inf, axis=axis, keepdims=True)
    return jnp.where(masked, 0, softmax(x, axis)).reshape(self.shape)


@lowering("aten::hash_tensor")
def hash_tensor(self: Array, dim: Dims = (), keepdim: bool = False, mode: int = 0) -> Array:
    """The exclusive or of the elements' bits as 64-bit numbers."""
    kind = real_dtype(self.dtype).kind
    bits = (
        lax.bitcast_convert_type(self.astype(jnp.float64), jnp.uint64)
        if kind == "f" or is_half(self)
        else convert(self, jnp.int64).astype(jnp.uint64)
    )
    zero = jnp.zeros((), jnp.uint64)
    result = lax.reduce(bits, zero, lax.bitwise_xor, axes_of(self, dim))
    return jnp.expand_dims(result, axes_of(self, dim)) if keepdim else result
