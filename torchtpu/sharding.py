"""How the values of a program are split over the devices of the process, where it has many.

A program says nothing of it: it is compiled for each way in which its inputs come, and XLA decides
how its results lie, but for what these functions fix while it is traced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torchtpu.program import Program
from torchtpu.targets import DeviceMesh, Executable, Spec

Array = Any


class _Tracing(threading.local):
    mesh: DeviceMesh | None = None
    known: dict[int, tuple[Array, Spec | None]]  # by id of a tracer: itself, and how it lies


_tracing = _Tracing()


@contextmanager
def tracing(
    mesh: DeviceMesh | None, inputs: Sequence[Array], specs: Sequence[Spec | None] | None
) -> Iterator[None]:
    """Trace inside a program whose inputs lie on a mesh in these ways."""
    before = _tracing.mesh, getattr(_tracing, "known", {})
    _tracing.mesh = mesh
    _tracing.known = {id(a): (a, s) for a, s in zip(inputs, specs or (), strict=False)}
    try:
        yield
    finally:
        _tracing.mesh, _tracing.known = before


def keep(result: Array, original: Array) -> Array:
    """Return a result that takes the place of another value, and lies as that does.

    It may lie anyhow where nothing was written to the other before, or XLA places that too.
    """
    found = _tracing.known.get(id(original)) if _tracing.mesh is not None else None
    if found is None or found[1] is None:
        return result
    return constrained(result, found[1])


def constrained(array: Array, spec: Spec) -> Array:
    """Return an array that lies as the spec says; as it is where there is one device."""
    import jax

    mesh = _tracing.mesh
    if mesh is None:
        return array
    made = jax.lax.with_sharding_constraint(array, mesh.sharding(spec))
    _tracing.known[id(made)] = made, spec
    return made


def replicated(array: Array) -> Array:
    """Return an array that is whole on every device."""
    return constrained(array, ())


class BySharding:
    """Runs a program on arrays of a mesh; it is compiled for each way in which they lie."""

    __slots__ = ("_compile", "_known", "_mesh", "_program")

    def __init__(
        self, program: Program, mesh: DeviceMesh, compile_: Callable[[Program], Executable]
    ) -> None:
        self._program, self._mesh, self._compile = program, mesh, compile_
        self._known: dict[tuple[Any, ...], Callable[[Sequence[Any]], list[Any]]] = {}

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run it."""
        key = tuple([array.sharding for array in arrays])
        run = self._known.get(key)
        if run is None:
            specs = tuple(self._mesh.spec(array) for array in arrays)
            run = self._compile(replace(self._program, shardings=specs)).run
            self._known[key] = run
        return run(arrays)
