"""How inputs of a program are split over the axes of a mesh, by patterns of their names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torchtpu.errors import TpuError, did_you_mean
from torchtpu.program import ArrayType

Axes = str | tuple[str, ...] | None  # of a mesh, which one dim is split over; None: over none
Spec = Sequence[Axes]  # by dim; missing ones are not split


class Sharding(NamedTuple):
    """A mesh (sizes by axis) and the specs of inputs whose names match patterns wholly."""

    mesh: dict[str, int]
    specs: dict[str, tuple[Axes, ...]]

    def of(self, names: Sequence[str], types: Sequence[ArrayType]) -> list[tuple[Axes, ...]]:
        """Return the spec of each input: that of the first pattern, () where none matches.

        Raises TpuError for a pattern without inputs, an unknown axis, or a dim that it does not
        split evenly.
        """
        unused = set(self.specs)
        found = [
            self._matched(name, type_, unused) for name, type_ in zip(names, types, strict=True)
        ]
        if unused:
            raise TpuError(
                f"[aot_compile] no input is called {sorted(unused)[0]!r}; {did_you_mean('', names)}"
            )
        return found

    def _matched(self, name: str, type_: ArrayType, unused: set[str]) -> tuple[Axes, ...]:
        for pattern, spec in self.specs.items():
            if re.fullmatch(pattern, name):
                unused.discard(pattern)
                self._check(name, type_, spec)
                return spec
        return ()

    def _check(self, name: str, type_: ArrayType, spec: tuple[Axes, ...]) -> None:
        if len(spec) > len(type_.shape):
            raise TpuError(
                f"[aot_compile] {name} has shape {type_.shape}, and its sharding {spec} more dims"
            )
        for size, axes in zip(type_.shape, spec, strict=False):
            split = [axes] if isinstance(axes, str) else list(axes or ())
            for axis in split:
                if axis not in self.mesh:
                    raise TpuError(
                        f"[aot_compile] unknown axis {axis!r} in the sharding {spec} of {name}; "
                        f"{did_you_mean(axis, self.mesh)}"
                    )
            count = math.prod(self.mesh[axis] for axis in split)
            if size % count:
                raise TpuError(
                    f"[aot_compile] {name} has shape {type_.shape}: {size} is no multiple of the "
                    f"{count} devices of {spec}"
                )


def sharding(mesh: Mapping[str, int] | None, specs: Mapping[str, Spec] | None) -> Sharding:
    """Return what `aot_compile` was given, checked as far as it can be without a program."""
    sizes = dict(mesh or {})
    if specs and not sizes:
        raise TpuError("[aot_compile] shardings need a mesh, such as {'data': 2, 'model': 2}")
    for axis, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise TpuError(f"[aot_compile] axis {axis!r} has size {size!r}, expected 1 or more")
    return Sharding(sizes, {pattern: tuple(spec) for pattern, spec in (specs or {}).items()})


def placed(
    own: Sharding, specs: Sequence[tuple[Axes, ...]], outputs: Sequence[int | None]
) -> dict[str, Any]:
    """Return the shardings for jax.jit; outputs: the input that an output takes the place of."""
    if not own.mesh:
        return {}
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

    mesh = AbstractMesh(tuple(own.mesh.values()), tuple(own.mesh))
    inputs = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs]
    return {
        "in_shardings": tuple(inputs),
        "out_shardings": [None if n is None else inputs[n] for n in outputs],
    }
