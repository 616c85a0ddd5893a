"""Meshes: the devices that one process drives, along named axes, and specs of tensors on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torchtpu import executor
from torchtpu.errors import TpuError, did_you_mean
from torchtpu.targets import Spec

Axes = str | tuple[str, ...] | None  # of a mesh, that one dim is split over; None: over none
PartitionSpec = Sequence[Axes]  # by dim; missing ones are not split


@dataclass(frozen=True)
class Mesh:
    """Devices along named axes: `Mesh((2, 4), ("data", "tensor"))` are eight.

    The last axis is that of neighbouring devices. TpuError for sizes below 1, names that are not
    words, and other than one name per size.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "names", tuple(self.names))
        sizes = all(type(n) is int and n > 0 for n in self.shape)
        words = all(isinstance(n, str) and n.isidentifier() for n in self.names)
        if not (sizes and words and self.shape) or len(set(self.names)) != len(self.shape):
            raise TpuError(
                "[spmd.Mesh] expected sizes of 1 or more and as many different names, such as "
                f'Mesh((2, 4), ("data", "tensor")), got {self.shape} and {self.names}'
            )

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    @cached_property
    def parts(self) -> dict[str, tuple[tuple[str, int], ...]]:
        """The prime axes that each axis consists of: XLA may split a dim over one of them alone."""
        found = {}
        for name, size in zip(self.names, self.shape, strict=True):
            primes = list(_primes(size))
            labels = [name] if len(primes) == 1 else [f"{name}.{n}" for n in range(len(primes))]
            found[name] = tuple(zip(labels, primes, strict=True))
        return found

    def inner(self, spec: PartitionSpec, shape: Sequence[int], op: str) -> Spec:
        """Return the spec of a tensor of this shape in prime axes.

        op: for the TpuError where it has more dims, unknown or repeated axes, or uneven parts.
        """
        if isinstance(spec, str) or not isinstance(spec, Sequence):
            raise TpuError(
                f"[{op}] expected a spec such as ('data', None), one entry per dim, got {spec!r}"
            )
        if len(spec) > len(shape):
            raise TpuError(
                f"[{op}] spec {tuple(spec)} has more dims than a tensor of {tuple(shape)}"
            )
        seen: set[str] = set()
        dims = []
        for size, axes in zip(shape, spec, strict=False):
            split = [axes] if isinstance(axes, str) else list(axes or ())
            for axis in split:
                if axis not in self.parts:
                    hint = did_you_mean(str(axis), self.names)
                    raise TpuError(f"[{op}] unknown axis {axis!r} in spec {tuple(spec)}; {hint}")
                if axis in seen:
                    raise TpuError(f"[{op}] axis {axis!r} stands twice in spec {tuple(spec)}")
                seen.add(axis)
            parts = [part for axis in split for part in self.parts[axis]]  # a list, for Dynamo
            count = math.prod([size for _, size in parts])
            if size % count:
                raise TpuError(
                    f"[{op}] expected dim of size {size} to be a multiple of the {count} devices "
                    f"along {axes!r}, in a tensor of {tuple(shape)} with spec {tuple(spec)}: pad "
                    "it, or do not split it"
                )
            dims.append(tuple([name for name, _ in parts]))
        while dims and not dims[-1]:
            dims.pop()
        return tuple(dims)

    def outer(self, spec: Spec, dims: int) -> tuple[Axes, ...]:
        """Return a spec of prime axes in the words of the mesh, one entry per dim.

        A part of an axis that stands alone, as XLA may choose, is called "data.0".
        """
        found = [self._merged(names) for names in spec]
        entries: list[Axes] = [f[0] if len(f) == 1 else f or None for f in found]
        return (*entries, *[None] * (dims - len(entries)))

    def _merged(self, names: Sequence[str]) -> tuple[str, ...]:
        rest, merged = list(names), []
        while rest:
            axis = rest[0].partition(".")[0]
            whole = [name for name, _ in self.parts[axis]]
            if rest[: len(whole)] == whole:
                merged.append(axis)
                del rest[: len(whole)]
            else:
                merged.append(rest.pop(0))
        return tuple(merged)


_mesh: Mesh | None = None


def use(devices: int | Mesh) -> Mesh:
    """Let this process drive a mesh of devices from its first tensor on; return the mesh.

    devices: a Mesh, or a number of devices along one axis called "devices". On target cpu they are
    XLA's, so many as are asked for; on target tpu the chips that this process sees. TpuError where
    the device is in use already or the process is in a process group; that there are too few
    devices is an error of the first tensor.
    """
    global _mesh
    mesh = devices if isinstance(devices, Mesh) else Mesh((devices,), ("devices",))
    if _mesh is not None and _mesh != mesh:
        raise TpuError(f"[spmd.use] this process drives {_mesh} already, and got {mesh}")
    executor.spread(tuple(part for axis in mesh.parts.values() for part in axis) or (("one", 1),))
    _mesh = mesh
    return mesh


def current_mesh() -> Mesh | None:
    """Return the mesh that this process drives; None where it has one device."""
    return _mesh


def checked(mesh: Mesh, op: str) -> Mesh:
    """Return the mesh where it is the one that this process drives."""
    if mesh != _mesh:
        drives = f"this process drives {_mesh}" if _mesh else "this process has one device"
        raise TpuError(
            f"[{op}] {drives}, and got {mesh!r}: call torchtpu.spmd.use(mesh) before the first "
            "tensor on the device, and use that mesh everywhere"
        )
    return mesh


def _primes(number: int) -> Iterator[int]:
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            yield divisor
            number //= divisor
        divisor += 1
