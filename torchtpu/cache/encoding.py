"""Values as bytes: one unambiguous spelling that is the same in every process, or an error.

Every spelling begins with a tag and says where it ends, so no two values share one. What a function
or class does is not spelled, only which one it is: a key holds the sources and versions beside it.
"""

from __future__ import annotations

import functools
import operator
import struct
import sys
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

Put = Callable[[bytes], None]
_Encoder = Callable[[Any, Put], None]

_COVERED = frozenset({"builtins", "torchtpu", "jax", "jaxlib", "numpy", "operator", "math"})


class Unencodable(TypeError):
    """A value has no canonical spelling; the text says which and why."""


def encode(value: object) -> bytes:
    """Return the spelling of a value; Unencodable where it has none."""
    pieces: list[bytes] = []
    try:
        _put(value, pieces.append)
    except RecursionError:
        raise Unencodable(f"[cache] {type(value).__name__} contains itself") from None
    return b"".join(pieces)


def _put(value: Any, put: Put) -> None:
    kind = type(value)
    encoder = _ENCODERS.get(kind)
    if encoder is None:
        encoder = _ENCODERS[kind] = _encoder_of(kind)
    encoder(value, put)


def _bool(value: bool, put: Put) -> None:
    put(b"T" if value else b"F")


def _int(value: int, put: Put) -> None:
    put(b"i%d;" % value)


def _float(value: float, put: Put) -> None:
    put(b"f" + struct.pack(">d", value))


def _complex(value: complex, put: Put) -> None:
    put(b"c" + struct.pack(">dd", value.real, value.imag))


@functools.lru_cache(maxsize=4096)
def _spelled(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"s%d:%b" % (len(data), data)


def _str(value: str, put: Put) -> None:
    put(_spelled(value))


def _bytes(value: bytes, put: Put) -> None:
    put(b"b%d:%b" % (len(value), value))


def _tuple(value: tuple[Any, ...], put: Put) -> None:
    put(b"(")
    for item in value:
        (_ENCODERS.get(type(item)) or _put)(item, put)
    put(b")")


def _set(value: frozenset[Any], put: Put) -> None:
    put(b"{%b}" % b"".join(sorted(encode(v) for v in value)))


def _dict(value: dict[Any, Any], put: Put) -> None:
    put(b"<%b>" % b"".join(sorted(encode(k) + encode(v) for k, v in value.items())))


@functools.lru_cache(maxsize=256)
def _dtype_spelled(value: Any) -> bytes:
    if value.fields is not None or value.subdtype is not None:
        raise Unencodable(f"[cache] dtype {value} has parts; expected a plain one")
    return b"d" + _spelled(value.name) + _spelled(value.str)


def _dtype(value: Any, put: Put) -> None:
    put(_dtype_spelled(value))


def _numpy_scalar(value: Any, put: Put) -> None:
    put(b"g")
    _dtype(value.dtype, put)
    _bytes(value.tobytes(), put)


def _enum(value: Enum, put: Put) -> None:
    put(b"e")
    _name(type(value), put)
    _str(str(value.name), put)
    _put(value.value, put)


def _named_tuple(value: tuple[Any, ...], put: Put) -> None:
    put(b"n")
    _name(type(value), put)
    _tuple(tuple(value), put)


def _size(value: tuple[Any, ...], put: Put) -> None:
    if (type(value).__module__, type(value).__qualname__) != ("torch", "Size"):
        raise Unencodable(f"[cache] no canonical spelling for a {type(value)!r}")
    _tuple(value, put)


def _method(value: types.MethodType, put: Put) -> None:
    put(b"m")
    _put(value.__self__, put)
    _str(value.__func__.__name__, put)


def _partial(value: functools.partial[Any], put: Put) -> None:
    put(b"p")
    _put(value.func, put)
    _tuple(value.args, put)
    _dict(value.keywords, put)


def _code(value: types.CodeType, put: Put) -> None:
    put(b"C")
    counts = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags
    names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
    _put((value.co_code, value.co_exceptiontable, counts, names, value.co_consts), put)


_remembered: dict[int, tuple[Any, bytes]] = {}  # id -> the constant, which keeps its id, and bytes


def _constant(spell: _Encoder) -> _Encoder:
    """Spell a function, class or other thing that lives as long as the process only once."""

    def put_constant(value: Any, put: Put) -> None:
        known = _remembered.get(id(value))
        if known is None:
            pieces: list[bytes] = []
            spell(value, pieces.append)
            known = _remembered[id(value)] = (value, b"".join(pieces))
        put(known[1])

    return put_constant


def _named(value: Any, put: Put) -> None:
    put(b"o")
    _name(value, put)
    if _found(value) is not value:
        raise Unencodable(f"[cache] {value!r} is not what its module and name lead to")


def _function(value: types.FunctionType, put: Put) -> None:
    put(b"o" if _found(value) is value else b"O")
    _name(value, put)
    if _found(value) is not value:
        try:
            cells = tuple(c.cell_contents for c in value.__closure__ or ())
        except ValueError:
            raise Unencodable(f"[cache] {value!r} refers to a variable without a value") from None
        _put((value.__code__, cells, value.__defaults__, value.__kwdefaults__), put)


def _name(value: Any, put: Put) -> None:
    """Where the sources of a function or class stand; those must be part of every key."""
    module, name = _address(value)
    if module.partition(".")[0] not in _COVERED:
        raise Unencodable(f"[cache] {name!r} of {module!r}: its sources are in no cache key")
    _str(module, put)
    _str(name, put)


def _address(value: Any) -> tuple[str, str]:
    """Module and name; a function's module is the one whose globals it sees."""
    names = getattr(value, "__globals__", {})
    module = names.get("__name__") if names else getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    if not isinstance(module, str) or not isinstance(name, str):
        raise Unencodable(f"[cache] {value!r} has no module and name")
    return module, name


def _found(value: Any) -> Any:
    module, name = _address(value)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _fields_of(kind: type) -> _Encoder:
    pieces: list[bytes] = [b"D"]
    _name(kind, pieces.append)
    head, names = b"".join(pieces), [f.name for f in fields(kind)]
    if not names:
        return lambda _, put: put(head)
    get = operator.attrgetter(*names, names[0])  # of one name it would return no tuple

    def put_fields(value: Any, put: Put) -> None:
        put(head)
        for item in get(value)[: len(names)]:
            (_ENCODERS.get(type(item)) or _put)(item, put)

    return _constant(put_fields) if _is_callable(kind) else put_fields


def _encoder_of(kind: type) -> _Encoder:
    """Find how values of a type are spelled, the first time that one is met."""
    import numpy as np

    if issubclass(kind, Enum):
        return _enum
    if issubclass(kind, np.dtype):
        return _dtype
    if issubclass(kind, np.generic):
        return _numpy_scalar
    if issubclass(kind, type):
        return _constant(_named)
    if issubclass(kind, tuple):
        return _named_tuple if hasattr(kind, "_fields") else _size
    if is_dataclass(kind) and vars(kind)["__dataclass_params__"].frozen:
        return _fields_of(kind)
    if kind.__module__.partition(".")[0] in _COVERED and _is_callable(kind):
        return _constant(_named)
    raise Unencodable(f"[cache] no canonical spelling for a {kind.__module__}.{kind.__qualname__}")


def _is_callable(kind: type) -> bool:
    return any("__call__" in vars(c) for c in kind.__mro__)


_ENCODERS: dict[type, _Encoder] = {
    types.NoneType: lambda _, put: put(b"N"),
    types.EllipsisType: lambda _, put: put(b"E"),
    bool: _bool,
    int: _int,
    float: _float,
    complex: _complex,
    str: _str,
    bytes: _bytes,
    tuple: _tuple,
    frozenset: _set,
    dict: _dict,
    types.CodeType: _code,
    types.MethodType: _method,
    functools.partial: _partial,
    types.FunctionType: _constant(_function),
}
