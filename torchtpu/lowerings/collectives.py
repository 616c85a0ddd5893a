"""Collectives over groups of devices, as the StableHLO ops that a target's compiler knows.

Every device runs the same program as a replica; `groups` partitions their numbers, and a group's
members exchange arrays along dim 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir

from torchtpu import targets
from torchtpu.lowerings.exchanges import Exchange
from torchtpu.lowerings.registry import Array, lowering
from torchtpu.private import jax as private

Groups = tuple[tuple[int, ...], ...]
_COMBINE = {
    "sum": "AddOp",
    "avg": "AddOp",
    "max": "MaxOp",
    "min": "MinOp",
    "product": "MulOp",
    "band": "AndOp",
    "bor": "OrOp",
    "bxor": "XorOp",
}


def parted(group: tuple[int, ...], world: int) -> Groups:
    """The groups of all devices, `group` being one: the others are its translations.

    Raises ValueError where translations do not part the world (a group of uneven strides).
    """
    first = min(group)
    offsets = sorted(member - first for member in group)
    free, groups = set(range(world)), []
    for start in range(world):
        if start not in free:
            continue
        members = tuple(start + offset for offset in offsets)
        if not free.issuperset(members):
            raise ValueError(
                f"[collectives] expected a group whose translations part {world} devices (an axis "
                f"of a mesh), got {group}"
            )
        free.difference_update(members)
        groups.append(members)
    return tuple(groups)


@cache
def _groups(group: tuple[int, ...], world: int) -> Any:
    return np.array(parted(group, world), np.int64)


@cache
def _primitive() -> Any:
    made = private.primitive("torchtpu_collective", _shape, _emit)
    for platform in targets.EXCHANGING:
        mlir.register_lowering(made, _emit_exchange, platform=platform)
    return made


@cache
def _place() -> Any:
    return private.primitive("torchtpu_place", _place_type, _emit_place)


def _place_type() -> Any:
    from jax.core import ShapedArray

    return ShapedArray((), np.dtype(np.int32))


def _emit_place(ctx: Any) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    del ctx
    scalar = ir.RankedTensorType.get((), ir.IntegerType.get_signless(32))
    return [stablehlo.convert(scalar, stablehlo.replica_id())]


def place() -> Array:
    """The number of the replica that runs the program, as int32."""
    made: Array = _place().bind()
    return made


_BY_EXCHANGE = ("all_reduce", "reduce_scatter", "all_to_all")


def _emit_exchange(ctx: Any, operand: Any, *room: Any, **options: Any) -> Any:
    if options["kind"] not in _BY_EXCHANGE or len(options["group"]) == 1:
        return _emit(ctx, operand, **options)
    return mlir.lower_fun(_exchanged, multiple_results=False)(ctx, operand, *room, **options)


def _exchanged(
    array: Array, *room: Array, kind: str, group: tuple[int, ...], world: int, reduce: str = ""
) -> Array:
    def move(piece: Array, pairs: Any) -> Array:
        return _as_bits(piece, lambda b: _collective("permute", b, (0,), world, pairs=tuple(pairs)))

    def gather(piece: Array) -> Array:
        return _as_bits(piece, lambda b: _collective("all_gather", b, group, world))

    exchange = Exchange(parted(group, world), move, gather, place().astype(np.int64))
    options = (reduce,) if reduce else tuple(r.reshape(-1) for r in room)
    made: Array = getattr(exchange, kind)(array.reshape(-1), *options)
    shape = array.shape
    return made.reshape(-1, *shape[1:]) if kind == "reduce_scatter" else made.reshape(shape)


def _as_bits(array: Array, send: Callable[[Array], Array]) -> Array:
    """Send an array as integers of the same size, unless every compiler moves it as it is."""
    if np.issubdtype(array.dtype, np.integer) or array.dtype == np.float32:
        return send(array)
    bits = np.dtype(f"uint{8 * array.dtype.itemsize}")
    return lax.bitcast_convert_type(send(lax.bitcast_convert_type(array, bits)), array.dtype)


def _shape(array: Any, *_room: Any, kind: str, group: tuple[int, ...], **_: Any) -> Any:
    shape, size = list(array.shape), len(group)
    if kind == "all_gather":
        shape[0] *= size
    elif kind == "reduce_scatter":
        shape[0] //= size
    return array.update(shape=tuple(shape))


def _emit(ctx: Any, operand: Any, *_room: Any, **options: Any) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    element = ir.RankedTensorType(operand.type).element_type
    result = ir.RankedTensorType.get(ctx.avals_out[0].shape, element)
    kind, size = options["kind"], len(options["group"])
    integers: Any = ir.DenseIntElementsAttr
    groups = integers.get(_groups(options["group"], options["world"]))
    if kind == "all_gather":
        return stablehlo.AllGatherOp([result], [operand], 0, groups).results
    if kind == "all_to_all":
        return stablehlo.AllToAllOp([operand], 0, 0, size, groups, results=[result]).results
    if kind == "permute":
        pairs = integers.get(np.array(options["pairs"], np.int64))
        return stablehlo.CollectivePermuteOp(operand, pairs, results=[result]).results
    if kind == "reduce_scatter":
        made: Any = stablehlo.ReduceScatterOp(result, operand, 0, groups)
    else:
        made = stablehlo.AllReduceOp([result], [operand], groups)
    _reduction(made, element, options["reduce"])
    return made.results


def _reduction(made: Any, element: Any, reduce: str) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    scalar = ir.RankedTensorType.get((), element)
    block = made.operation.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        combine = getattr(stablehlo, _COMBINE[reduce])
        stablehlo.return_([combine(*block.arguments).result])


def _collective(
    kind: str, array: Array, group: Any, world: int, *room: Array, **options: Any
) -> Array:
    members = tuple(int(member) for member in group)
    made: Array = _primitive().bind(array, *room, kind=kind, group=members, world=world, **options)
    return made


def _averaged(array: Array, reduce: str, size: int) -> Array:
    return array / jnp.asarray(size, array.dtype) if reduce == "avg" else array


@lowering("torchtpu::all_reduce", static=("group",))
def all_reduce(input: Array, reduce: str, group: Any, world: int) -> Array:
    """The members' arrays, reduced element by element."""
    return _averaged(
        _collective("all_reduce", input, group, world, reduce=reduce), reduce, len(group)
    )


@lowering("torchtpu::all_gather", static=("group",))
def all_gather(input: Array, group: Any, world: int) -> Array:
    """[N, ...] of each member -> [members * N, ...], in the order of the group."""
    return _collective("all_gather", input, group, world)


@lowering("torchtpu::reduce_scatter", static=("group",))
def reduce_scatter(input: Array, reduce: str, group: Any, world: int) -> Array:
    """[members * N, ...] of each -> [N, ...]: the member's part of the reduced array."""
    return _averaged(
        _collective("reduce_scatter", input, group, world, reduce=reduce), reduce, len(group)
    )


@lowering("torchtpu::all_to_all", static=("group",))
def all_to_all(input: Array, group: Any, world: int) -> Array:
    """[members * N, ...]: part i goes to member i, in whose result it stands at the sender's."""
    return _collective("all_to_all", input, group, world)


def all_to_all_into(input: Array, room: Sequence[Array], group: Any, world: int) -> Array:
    """The same; `room` may hold an array like the result, which may take over its memory."""
    return _collective("all_to_all", input, group, world, *room)


@lowering("torchtpu::permute", static=("pairs",))
def permute(input: Array, pairs: Any, world: int) -> Array:
    """Arrays sent along (from, to) pairs, given flat; zeros where nothing arrives."""
    flat = tuple(int(n) for n in pairs)
    sent = tuple(zip(flat[::2], flat[1::2], strict=True))
    return _collective("permute", input, (0,), world, pairs=sent)
