"""Reads and writes of strided views as StableHLO slices, reshapes and transposes of the base array.

A buffer is a dense row-major array of some *physical* shape; a tensor is a `View` (shape, strides,
offset) of its elements. Mixed-radix factoring finds a reshape of the physical array in which the
view is a rectangular slice, be it of the flat array; only views for which there is none
(overlapping windows, strides that do not divide each other) become a gather.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any  # jax.Array or a tracer of one


@dataclass(frozen=True, slots=True)
class View:
    """A strided view: sizes, strides and offset in elements of `dtype`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class _Factoring:
    """The physical array as `radices`; the view is its slice at `starts` of `sizes`."""

    radices: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]  # view dims by descending stride, broadcast and size-1 dims left out

    def whole(self, elements: int) -> bool:
        return self.sizes == self.radices and math.prod(self.radices) == elements


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def needed_elements(view: View) -> int:
    """Return how many elements of storage the view reaches, from 0 to its last element."""
    if 0 in view.shape:
        return 0
    return view.offset + 1 + sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))


def overlaps(view: View) -> bool:
    """Tell whether two indices of the view may be one element (conservative for odd strides)."""
    if 0 in view.shape:
        return False
    dims = sorted((s, n) for n, s in zip(view.shape, view.strides, strict=True) if n > 1)
    reach = 0
    for stride, size in dims:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def partly_overlap(one: View, other: View) -> bool:
    """Tell whether two dense views of a buffer share elements and are not the same view.

    Of views with gaps torch says nothing, as that would be hard to tell.
    """
    if 0 in one.shape or 0 in other.shape or not (_is_dense(one) and _is_dense(other)):
        return False
    (start, end), (begin, stop) = _reach(one), _reach(other)
    if (start, end) == (begin, stop):
        return one.strides != other.strides
    return start < stop and begin < end


def _is_dense(view: View) -> bool:
    dims = sorted((s, n) for n, s in zip(view.shape, view.strides, strict=True) if n > 1)
    step = 1
    for stride, size in dims:
        if stride != step:
            return False
        step *= size
    return True


def _reach(view: View) -> tuple[int, int]:
    """First byte of a dense view, and the first behind it."""
    itemsize = view.dtype.itemsize
    return view.offset * itemsize, (view.offset + math.prod(view.shape)) * itemsize


def read(base: Array, view: View) -> Array:
    """Return the view's elements as an array of the view's shape."""
    import jax
    import jax.numpy as jnp

    if 0 in view.shape:
        return jnp.zeros(view.shape, view.dtype)
    base = _with_dtype(base, view.dtype)
    if base.shape == view.shape and view.offset == 0 and _is_contiguous(view):
        return base
    factoring = _factor(view, base.shape)
    if factoring is None:
        return base.reshape(-1)[_indices(view)]
    part = _to_radices(base, factoring.radices)
    if part.shape != factoring.sizes:
        limits = tuple(a + n for a, n in zip(factoring.starts, factoring.sizes, strict=True))
        part = jax.lax.slice(part, factoring.starts, limits)
    part = part.reshape([view.shape[d] for d in factoring.order])
    kept = sorted(factoring.order)
    part = part.transpose([factoring.order.index(d) for d in kept])
    ones = [view.shape[d] if d in factoring.order else 1 for d in range(len(view.shape))]
    return jnp.broadcast_to(part.reshape(ones), view.shape)


def write(
    base: Array | None, view: View, value: Array, physical: tuple[int, ...], dtype: Any
) -> Array:
    """Return the physical array with the view's elements replaced by `value`.

    `base` may be None where the view covers the whole buffer, or where the rest is undefined.
    """
    import jax.numpy as jnp

    if base is None:
        base = jnp.zeros(physical, dtype)
    if 0 in view.shape:
        return base
    base = _with_dtype(base, view.dtype)
    written = _write_same_dtype(base, view, jnp.broadcast_to(value, view.shape))
    return _with_dtype(written, np.dtype(dtype)).reshape(physical)


def covers(view: View, physical: tuple[int, ...], dtype: Any) -> bool:
    """Tell whether the view is exactly the whole buffer, so that a write needs no old value."""
    elements = math.prod(physical)
    if np.dtype(dtype) != view.dtype or math.prod(view.shape) != elements or elements == 0:
        return False
    factoring = _factor(view, physical)
    return factoring is not None and factoring.whole(elements)


def _write_same_dtype(base: Array, view: View, value: Array) -> Array:
    import jax

    elements = math.prod(base.shape)
    factoring = _factor(view, base.shape)
    if factoring is None:
        return base.reshape(-1).at[_indices(view)].set(value)
    keep = [d for d in range(len(view.shape)) if d in factoring.order]
    value = value[tuple(slice(None) if d in keep else 0 for d in range(len(view.shape)))]
    value = value.transpose([keep.index(d) for d in factoring.order]).reshape(factoring.sizes)
    if factoring.whole(elements):
        return value
    target = _to_radices(base, factoring.radices)
    target = jax.lax.dynamic_update_slice(target, value, factoring.starts)
    return target.reshape(-1)[:elements]


def _is_contiguous(view: View) -> bool:
    expected = contiguous_strides(view.shape)
    return all(n == 1 or s == e for n, s, e in zip(view.shape, view.strides, expected, strict=True))


def _to_radices(base: Array, radices: tuple[int, ...]) -> Array:
    import jax.numpy as jnp

    missing = math.prod(radices) - math.prod(base.shape)
    if missing:
        base = jnp.pad(base.reshape(-1), (0, missing))
    return base.reshape(radices)


def _factor(view: View, physical: tuple[int, ...]) -> _Factoring | None:
    """Try radices that keep the physical dims apart first, then only those the view needs."""
    order = tuple(
        sorted(
            (d for d, n in enumerate(view.shape) if n > 1 and view.strides[d] > 0),
            key=lambda d: (-view.strides[d], d),
        )
    )
    needed = {view.strides[d] for d in order} | {1}
    if not _divides(needed):
        return None
    fine = set(needed)
    for stride in contiguous_strides(physical):
        if _divides(fine | {stride}):
            fine.add(stride)
    for strides in (fine, needed):
        found = _slice_of(view, order, sorted(strides, reverse=True), math.prod(physical))
        if found is not None:
            return found
    if not _is_dense(view):
        return None
    return _Factoring((math.prod(physical),), (view.offset,), (math.prod(view.shape),), order)


def _divides(strides: set[int]) -> bool:
    chain = sorted(strides)
    return all(chain[i + 1] % chain[i] == 0 for i in range(len(chain) - 1))


def _slice_of(
    view: View, order: tuple[int, ...], strides: list[int], elements: int
) -> _Factoring | None:
    radices = [-(-elements // strides[0])]
    radices += [strides[k - 1] // strides[k] for k in range(1, len(strides))]
    starts = [(view.offset // s) % r for s, r in zip(strides[1:], radices[1:], strict=True)]
    starts.insert(0, view.offset // strides[0])
    sizes = [0] * len(radices)
    for d in order:
        left, k = view.shape[d], strides.index(view.strides[d])
        while left > 1:
            if k < 0 or sizes[k]:
                return None
            if starts[k] + left <= radices[k]:
                sizes[k], left = left, 1
            elif starts[k] == 0 and left % radices[k] == 0:
                sizes[k], left = radices[k], left // radices[k]
            else:
                return None
            k -= 1
    sizes = [n or 1 for n in sizes]
    inside = all(a + n <= r for a, n, r in zip(starts, sizes, radices, strict=True))
    if not inside:
        return None
    return _Factoring(tuple(radices), tuple(starts), tuple(sizes), order)


def _indices(view: View) -> Array:
    """Element index of every position of the view in the flat buffer."""
    import jax.numpy as jnp

    index = jnp.full((), view.offset, jnp.int32 if needed_elements(view) < 2**31 else jnp.int64)
    rank = len(view.shape)
    for d, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        steps = jnp.arange(size, dtype=index.dtype) * stride
        index = index + steps.reshape([size if i == d else 1 for i in range(rank)])
    return index


def _with_dtype(base: Array, dtype: np.dtype[Any]) -> Array:
    """Reinterpret the bytes of a dense array as another dtype (torch's `view(dtype)`)."""
    import jax
    import jax.numpy as jnp

    source = np.dtype(base.dtype)
    if source == dtype:
        return base
    if source.kind == "c":
        half = np.dtype(f"f{source.itemsize // 2}")
        pairs = jnp.stack([base.real, base.imag], -1).astype(half)
        return _with_dtype(pairs.reshape((*base.shape[:-1], -1)), dtype)
    if dtype.kind == "c":
        parts = _with_dtype(base, np.dtype(f"f{dtype.itemsize // 2}")).reshape(-1, 2)
        return jax.lax.complex(parts[:, 0], parts[:, 1])
    if source.kind == "b":
        return _with_dtype(base.astype(np.uint8), dtype)
    if dtype.kind == "b":
        return _with_dtype(base, np.dtype(np.uint8)) != 0
    if source.itemsize == dtype.itemsize:
        return jax.lax.bitcast_convert_type(base, dtype)
    if source.itemsize > dtype.itemsize:
        parts = jax.lax.bitcast_convert_type(base, dtype)  # [..., ratio]
        return parts.reshape((*base.shape[:-1], -1))
    ratio = dtype.itemsize // source.itemsize
    flat = base.reshape(-1)
    flat = flat[: flat.size // ratio * ratio].reshape(-1, ratio)
    return jax.lax.bitcast_convert_type(flat, dtype)
