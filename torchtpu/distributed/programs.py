"""The programs of collectives: StableHLO that the members of a group run together.

Members are numbered in the order of the group. Arrays come in any physical shape and are exchanged
flat; results have the shape of the memory that they become.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu.lowerings import collectives
from torchtpu.program import ArrayType, Node, Program, Ref

_BITS = {"band": jnp.bitwise_and, "bor": jnp.bitwise_or, "bxor": jnp.bitwise_xor}
Array = Any
Shapes = tuple[tuple[int, ...], ...]


def together(
    name: str,
    fn: Callable[..., list[Array]],
    inputs: Sequence[ArrayType],
    outputs: int,
    ranks: tuple[int, ...],
    donated: tuple[int, ...] = (),
    **static: Any,
) -> Program:
    """Return the program in which the processes `ranks` call fn(arrays, size=, **static).

    Where nothing is to be exchanged, each runs it alone.
    """
    refs = tuple(Ref(n) for n in range(len(inputs)))
    options = (*static.items(), ("size", len(ranks)))
    node = Node(f"c10d::{name}", fn, refs, options, outputs)
    last = len(inputs)
    made = tuple(range(last, last + outputs))
    shapes = (*(t.shape for t in inputs), *static["shapes"])
    if not any(map(math.prod, shapes)) and not any(map(sum, static.get("splits", ()))):
        ranks = ()
    return Program(tuple(inputs), (node,), made, donated, ranks=ranks, label=name)


def all_reduce(*arrays: Array, reduce: str, shapes: Shapes, size: int) -> Any:
    """Reduce each array over the members."""
    made = [_reduced(a.reshape(-1), "all_reduce", reduce, size) for a in arrays]
    return _only([m.reshape(shape) for m, shape in zip(made, shapes, strict=True)])


def reduce_scatter(*arrays: Array, reduce: str, shapes: Shapes, size: int) -> Any:
    """Reduce arrays of `size` parts over the members, each of which keeps its own part.

    Behind the arrays come those whose memory the results take over, here and in the next two.
    """
    made = [_reduced(a.reshape(-1), "reduce_scatter", reduce, size) for a in arrays[: len(shapes)]]
    return _only([m.reshape(shape) for m, shape in zip(made, shapes, strict=True)])


def all_gather(*arrays: Array, shapes: Shapes, size: int) -> Any:
    """Put the members' arrays behind each other."""
    made = [
        _moved(a.reshape(-1), lambda b: collectives.all_gather(b, range(size), size))
        for a in arrays[: len(shapes)]
    ]
    return _only([m.reshape(shape) for m, shape in zip(made, shapes, strict=True)])


def all_gather_parts(array: Array, *, lengths: tuple[int, ...], shapes: Shapes, size: int) -> Any:
    """Return the members' arrays one by one; they have these lengths, which may differ."""
    longest = max(lengths)
    padded = jnp.pad(array.reshape(-1), (0, longest - array.size))
    made = _moved(padded, lambda b: collectives.all_gather(b, range(size), size))
    parts = made.reshape(size, longest)
    return _only([parts[n, : lengths[n]].reshape(shape) for n, shape in enumerate(shapes)])


def broadcast(*arrays: Array, root: int, shapes: Shapes, size: int) -> Any:
    """Hand the root's arrays on, each holder to one more member per round (a binomial tree)."""
    return _only(
        [
            _moved(a.reshape(-1), lambda b: _handed_on(b, root, size)).reshape(shape)
            for a, shape in zip(arrays, shapes, strict=True)
        ]
    )


def _handed_on(array: Array, root: int, size: int) -> Array:
    place = (collectives.place() - root) % size  # the root is 0
    held, step = array, 1
    while step < size:
        pairs = [
            n
            for giver in range(min(step, size - step))
            for n in ((giver + root) % size, (giver + step + root) % size)
        ]
        came = collectives.permute(held, pairs, size)
        held = jnp.where((place >= step) & (place < 2 * step), came, held)
        step *= 2
    return held


def all_to_all_even(array: Array, *room: Array, shapes: Shapes, size: int) -> Any:
    """Send part i to member i, all parts being of one length; maybe into the memory of `room`."""
    made = _moved(
        array.reshape(-1),
        lambda b, *r: collectives.all_to_all_into(b, r, range(size), size),
        *(r.reshape(-1) for r in room),
    )
    return made.reshape(shapes[0])


def all_to_all(
    *arrays: Array,
    splits: tuple[tuple[int, ...], ...],
    shapes: Shapes,
    place: int,
    size: int,
) -> Any:
    """Send part i to member i; splits[from][to] are the parts' lengths. One result, or `size`."""
    array = jnp.concatenate([a.reshape(-1) for a in arrays])
    longest = max(map(max, splits))
    starts = np.concatenate([[0], np.cumsum(splits[place])])
    if all(n == longest for n in splits[place]):
        sent = array
    else:
        parts = [
            jnp.pad(array[starts[n] : starts[n + 1]], (0, longest - splits[place][n]))
            for n in range(size)
        ]
        sent = jnp.concatenate(parts)
    made = _moved(sent, lambda b: collectives.all_to_all(b, range(size), size))
    came = [made[n * longest : n * longest + splits[n][place]] for n in range(size)]
    if len(shapes) == size and size > 1:
        return _only([c.reshape(shape) for c, shape in zip(came, shapes, strict=True)])
    return jnp.concatenate(came).reshape(shapes[0])


def scatter(*arrays: Array, root: int, shapes: Shapes, size: int) -> Any:
    """Return the part that the root has for this member; others give zeros."""
    flat = jnp.concatenate([a.reshape(-1) for a in arrays])
    made = _moved(flat, lambda b: collectives.all_to_all(b, range(size), size))
    return made.reshape(size, -1)[root].reshape(shapes[0])


def message(array: Array, *, shapes: Shapes, size: int) -> Any:
    """Return at member 1 what member 0 has."""
    made = _moved(array.reshape(-1), lambda b: collectives.permute(b, (0, 1), size))
    return made.reshape(shapes[0])


def _only(results: list[Array]) -> Any:
    return results[0] if len(results) == 1 else results


def _moved(array: Array, exchange: Callable[..., Array], *room: Array) -> Array:
    """Exchange an array's bits: members take them for integers of the same size.

    room: arrays like the result, which `exchange` gets as such integers too.
    """
    dtype = array.dtype
    if not array.size:
        return array
    if np.issubdtype(dtype, np.complexfloating):
        given = [jnp.stack([a.real, a.imag], axis=-1).reshape(-1) for a in (array, *room)]
        parts = _moved(given[0], exchange, *given[1:]).reshape(-1, 2)
        return jax.lax.complex(parts[:, 0], parts[:, 1])
    if dtype == np.float32:  # every compiler moves these as they are
        return exchange(array, *room)
    if dtype == np.bool_:
        return exchange(*(a.astype(np.uint8) for a in (array, *room))).astype(np.bool_)
    bits = jnp.dtype(f"uint{8 * dtype.itemsize}")
    made = exchange(*(jax.lax.bitcast_convert_type(a, bits) for a in (array, *room)))
    return jax.lax.bitcast_convert_type(made, dtype)


def _reduced(array: Array, kind: str, reduce: str, size: int) -> Array:
    dtype = array.dtype
    exchange = getattr(collectives, kind)
    members = range(size)
    if not array.size:
        return array
    if reduce in _BITS:
        return _bits_reduced(array, kind, _BITS[reduce], size)
    if np.issubdtype(dtype, np.complexfloating):
        real, imag = (exchange(part, reduce, members, size) for part in (array.real, array.imag))
        return jax.lax.complex(real, imag)
    if dtype == np.bool_:
        counted = "sum" if reduce == "avg" else reduce
        return exchange(array.astype(np.int32), counted, members, size).astype(np.bool_)
    if reduce == "avg" and np.issubdtype(dtype, np.integer):
        total = exchange(array, "sum", members, size)
        return jax.lax.div(total, jnp.asarray(size, dtype))
    made: Array = exchange(array, reduce, members, size)
    return made


def _bits_reduced(array: Array, kind: str, combine: Any, size: int) -> Array:
    """Reduce bit by bit where the array is: no target's collectives are sure to."""
    move = collectives.all_gather if kind == "all_reduce" else collectives.all_to_all
    parts = _moved(array, lambda b: move(b, range(size), size)).reshape(size, -1)
    return combine.reduce(parts, axis=0)
