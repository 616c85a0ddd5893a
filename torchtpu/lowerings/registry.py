"""The lowering table: one pure JAX function per aten op, and how its arguments are prepared.

A lowering takes the arguments of the functional overload's schema by the same names; tensors and
varying numbers arrive as arrays, everything else as Python values (dtypes as numpy dtypes).
Generator, device, layout, pin_memory, memory_format and out never arrive.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu.errors import LoweringError
from torchtpu.program import ArrayType

Array = Any  # jax.Array or a tracer of one
Compute = Literal["output", "inputs", "as_is"]

_KEYWORDS = {"from_": "from"}  # parameters whose schema names are Python keywords
_PARAMETERS = {name: parameter for parameter, name in _KEYWORDS.items()}
_BFLOAT16 = np.dtype(jnp.bfloat16)
_HALF = frozenset({_BFLOAT16, np.dtype(np.float16)})


@dataclass(frozen=True, slots=True)
class CallTypes:
    """What one call computes in (None: arguments as they are) and what it must return."""

    compute: np.dtype[Any] | None
    outputs: tuple[ArrayType | None, ...] | None  # None: as the function returns them


@dataclass(frozen=True, kw_only=True, eq=False)
class Lowering:
    """A row of the table.

    aliases: names that arguments have in other releases of torch -> the parameters they are.
    compute: "output" casts tensor and number arguments to the first output's dtype, "inputs" to
        torch's promotion of the inputs (comparisons), "as_is" to nothing.
    opmath: compute in float32 where that dtype is bfloat16 or float16, as torch does.
    one_step: rounds once or not at all, so that bfloat16 operands need no float32: the bits are
        the same, and no float32 array comes to stand in a TPU's memory.
    static: numbers that are compiled in although they may vary (they change the program's shape).
    numbers: arguments that the schema calls int and that are program inputs like Scalars.
    constants: values of number arguments that get a program of their own, e.g. pow(x, 2).
    keep: arguments that are never cast (conditions, indices).
    half: the function takes `half`, the two-byte dtype that torch rounds to between its steps
        (None where the call computes in another).
    key: the function draws random bits: its first argument is a uint32[4] key.
    shape_only: tensor arguments of which only shape and dtype matter (`fill`, `uniform`).
    writes: argument name -> index of the output that replaces it (running statistics).
    bounds: a function of the same arguments that names the indices to check: (index array, dim,
        size) each. Debug mode raises where one is out of range; elsewhere nothing is checked.
    """

    name: str
    fn: Callable[..., Any]
    aliases: Mapping[str, str] = field(default_factory=dict)
    compute: Compute = "as_is"
    opmath: bool = True
    one_step: bool = False
    static: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    constants: Mapping[str, frozenset[float]]
    keep: frozenset[str] = frozenset()
    half: bool = False
    key: bool = False
    shape_only: frozenset[str] = frozenset()
    writes: Mapping[str, int]
    bounds: Callable[..., list[tuple[Array, int, int]]] | None = None

    def __call__(self, types: CallTypes, /, *key: Array, **kwargs: Any) -> Any:
        """Cast, compute, and return arrays of exactly the types that torch expects."""
        dtype = types.compute
        if dtype is not None:
            if self.opmath and dtype in _HALF and not self._is_narrow(dtype, kwargs):
                dtype = np.dtype(np.float32)
            kwargs = {n: a if n in self.keep else _cast(a, dtype) for n, a in kwargs.items()}
        if self.half:
            kwargs["half"] = types.compute if types.compute in _HALF else None
        results = self.fn(*key, **{self._parameter(n): a for n, a in kwargs.items()})
        if types.outputs is None:
            return results
        if len(types.outputs) == 1 and not isinstance(results, (tuple, list)):
            return self._typed(types.outputs[0], results)
        results = [self._typed(t, r) for t, r in zip(types.outputs, results, strict=True)]
        return results[0] if len(results) == 1 else results

    def _is_narrow(self, dtype: np.dtype[Any], kwargs: Mapping[str, Any]) -> bool:
        arrays = (a for n, a in kwargs.items() if n not in self.keep and isinstance(a, jax.Array))
        return self.one_step and dtype == _BFLOAT16 and all(a.dtype == dtype for a in arrays)

    def first_out_of_range(self, /, **kwargs: Any) -> Array:
        """Return int64[4]: whether an index is out of range, that index, its dim and its size."""
        assert self.bounds is not None, self.name
        found = jnp.zeros(4, jnp.int64)
        named = {self._parameter(n): a for n, a in kwargs.items()}
        for index, dim, size in self.bounds(**named):
            flat = index.reshape(-1).astype(jnp.int64)
            if flat.size:
                bad = (flat < -size) | (flat >= size)
                here = jnp.stack([jnp.any(bad), flat[jnp.argmax(bad)], dim, size])
                found = jnp.where(found[0] != 0, found, here)
        return found

    def _parameter(self, argument: str) -> str:
        return self.aliases.get(argument) or _PARAMETERS.get(argument, argument)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the function's parameters in order."""
        code = self.fn.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return tuple(_KEYWORDS.get(n, n) for n in names)

    @property
    def optional(self) -> frozenset[str]:
        """Parameters with a default, which some of the overloads of a shared function lack."""
        positional = len(self.fn.__defaults__ or ())
        code = self.fn.__code__
        names = self.parameters[code.co_argcount - positional : code.co_argcount]
        return frozenset(names) | frozenset(self.fn.__kwdefaults__ or ())

    def _typed(self, expected: ArrayType | None, result: Array) -> Array:
        if expected is None:
            return jnp.zeros(())
        if result is None:  # a gradient that was not asked for
            return jnp.zeros(expected.shape, expected.dtype)
        if tuple(np.shape(result)) != expected.shape:
            shape = np.shape(result)
            raise LoweringError(
                f"[{self.name}] expected a result of shape {expected.shape}, got {shape}"
            )
        return convert(jnp.asarray(result), expected.dtype)


_TABLE: dict[str, Lowering] = {}


def lowering(
    *names: str,
    aliases: Mapping[str, str] | None = None,
    compute: Compute = "as_is",
    opmath: bool = True,
    one_step: bool = False,
    static: Iterable[str] = (),
    numbers: Iterable[str] = (),
    constants: Mapping[str, Iterable[float]] | None = None,
    keep: Iterable[str] = (),
    half: bool = False,
    key: bool = False,
    shape_only: Iterable[str] = (),
    writes: Mapping[str, int] | None = None,
    bounds: Callable[..., list[tuple[Array, int, int]]] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function under the names of functional overloads ("aten::add.Tensor")."""

    def named(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            enter(
                Lowering(
                    name=name,
                    fn=fn,
                    aliases=aliases or {},
                    compute=compute,
                    opmath=opmath,
                    one_step=one_step,
                    static=frozenset(static),
                    numbers=frozenset(numbers),
                    constants={n: frozenset(v) for n, v in (constants or {}).items()},
                    keep=frozenset(keep),
                    half=half,
                    key=key,
                    shape_only=frozenset(shape_only),
                    writes=dict(writes or {}),
                    bounds=bounds,
                )
            )
        return fn

    return named


def enter(row: Lowering) -> None:
    """Enter a lowering into the table; LoweringError where its name is taken."""
    if row.name in _TABLE:
        other = _TABLE[row.name].fn
        raise LoweringError(f"[{row.name}] is in the lowering table already, by {other}")
    _TABLE[row.name] = row


def entry(name: str) -> Lowering:
    """Return a lowering that an imported family has entered."""
    return _TABLE[name]


@cache
def table() -> Mapping[str, Lowering]:
    """Return all lowerings by name; imports the families of this folder at the first call."""
    package = importlib.import_module("torchtpu.lowerings")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in ("registry", "__main__"):
            importlib.import_module(f"torchtpu.lowerings.{module.name}")
    return _TABLE


def convert(array: Array, dtype: Any) -> Array:
    """Convert values as torch does: float to integer truncates, anything to bool is `!= 0`."""
    dtype = np.dtype(dtype)
    if array.dtype == dtype:
        return array
    if dtype.kind == "b":
        return array != 0
    if array.dtype.kind == "c" and dtype.kind != "c":
        array = array.real
    if array.dtype == bool and dtype.kind not in "iu":
        array = jnp.where(array, 1, 0)  # XLA makes x * convert(bool) a select: no NaN of inf * 0
    return jax.lax.convert_element_type(array, dtype)


def rounded(array: Array, half: np.dtype[Any] | None) -> Array:
    """Round float32 numbers to those of a two-byte dtype, if one is given, and keep float32."""
    if half is None:
        return array
    limits = jnp.finfo(half)  # type: ignore[no-untyped-call]  # jax
    return jax.lax.reduce_precision(array, limits.nexp, limits.nmant)


def _cast(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, jax.Array):
        return convert(value, dtype)
    if isinstance(value, tuple) and any(isinstance(v, jax.Array) for v in value):
        return tuple(_cast(v, dtype) for v in value)
    return value


def dims_of(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return dims as non-negative ints in order; None and () mean all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(rank))
    dims = (dim,) if isinstance(dim, int) else dim
    return tuple(d % rank if rank else 0 for d in dims)
