"""What a schema says of an overload: kinds of arguments, what is written, its relatives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from torchtpu.private.versions import is_later


class Kind(IntEnum):
    """How an argument takes part in a call."""

    STATIC = 0  # compiled in; part of the key
    TENSOR = 1  # Tensor, Tensor?
    NUMBER = 2  # Scalar, float: a program input unless the lowering says otherwise
    TENSORS = 3  # Tensor[], Tensor?[]
    NUMBERS = 4  # Scalar[], float[]
    IGNORED = 5  # generator, device, layout, pin_memory, memory_format


_KINDS = {
    "Tensor": Kind.TENSOR,
    "Optional[Tensor]": Kind.TENSOR,
    "List[Tensor]": Kind.TENSORS,
    "List[Optional[Tensor]]": Kind.TENSORS,
    "number": Kind.NUMBER,
    "Optional[number]": Kind.NUMBER,
    "float": Kind.NUMBER,
    "Optional[float]": Kind.NUMBER,
    "List[number]": Kind.NUMBERS,
    "List[float]": Kind.NUMBERS,
    "Optional[List[float]]": Kind.NUMBERS,
}
_IGNORED = frozenset(
    {"generator", "device", "layout", "pin_memory", "memory_format", "non_blocking"}
)


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument of a schema."""

    name: str
    kind: Kind
    default: Any
    has_default: bool
    written: bool
    is_out: bool


def arguments(schema: Any) -> tuple[Argument, ...]:
    """Return the arguments of a schema in order, positional ones first."""
    return tuple(
        Argument(
            name=a.name,
            kind=Kind.IGNORED if a.name in _IGNORED else _KINDS.get(str(a.type), Kind.STATIC),
            default=a.default_value,
            has_default=a.has_default_value(),
            written=bool(a.alias_info and a.alias_info.is_write),
            is_out=a.is_out,
        )
        for a in schema.arguments
    )


def overload(name: str) -> Any:
    """Return torch's OpOverload of "aten::add.Tensor" (an overload without a name is "default")."""
    namespace, _, rest = name.partition("::")
    packet, _, which = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), which or "default")


def exists(name: str) -> bool:
    """Tell whether this torch has an op; AttributeError where all that are known would have it."""
    try:
        overload(name)
    except AttributeError:
        if not is_later("torch"):
            raise
        return False
    return True


def variants(functional: Any) -> tuple[list[Any], list[Any]]:
    """Return the in-place and out= overloads whose other arguments are those of `functional`."""
    schema = functional._schema
    wanted = _shape(schema)
    namespace, _, base = schema.name.partition("::")
    ops = getattr(torch.ops, namespace)
    in_place, out = [], []
    base = base.removesuffix("_functional")  # normal_functional is the functional form of normal_
    for packet_name in (base, base + "_"):
        try:
            packet = getattr(ops, packet_name)
        except AttributeError:
            continue
        for which in packet.overloads():
            found = getattr(packet, which)
            if found is functional or _shape(found._schema) != wanted:
                continue
            found_arguments = found._schema.arguments
            outs = sum(a.is_out for a in found_arguments)
            if outs:
                if outs == len(schema.returns):  # not those of the form that writes its inputs
                    out.append(found)
            elif packet_name.endswith("_") and any(_is_written(a) for a in found_arguments):
                in_place.append(found)
    return in_place, out


def _is_written(argument: Any) -> bool:
    return bool(argument.alias_info and argument.alias_info.is_write)


def _shape(schema: Any) -> list[tuple[str, str]]:
    """Names and types of the arguments, without out= and what never reaches a lowering."""
    return [
        (a.name, str(a.type)) for a in schema.arguments if not a.is_out and a.name not in _IGNORED
    ]
