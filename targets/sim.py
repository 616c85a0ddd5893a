"""Target sim: a chip's clock and HBM account, over cpu numerics or abstract arrays."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torchtpu.perf_model import bytecode, stablehlo
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.network import topology as topologies
from torchtpu.perf_model.network.slices import format_shape
from torchtpu.perf_model.network.topology import Topology
from torchtpu.perf_model.program import Graph
from torchtpu.sim.context import context
from torchtpu.sim.device import SimDevice
from torchtpu.sim.memory import HbmAccount, MemoryUse
from torchtpu.sim.observed import AbstractArray, Launch
from torchtpu.targets.base import (
    DeviceArray,
    DeviceInfo,
    Executable,
    Settings,
    Target,
    TargetError,
)
from torchtpu.targets.meshes import Spec
from torchtpu.targets.placement import Place

DEFAULT_CHIP = "v6e"
_KINDS = {  # chips whose meshes JAX lays out in ways of their own, under its names
    "v2": "TPU v2",
    "v3": "TPU v3",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5p",
    "v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
}


class SimTarget(Target):
    """Simulated time and memory of one chip; values come from `numerics`, or do not exist."""

    name = "sim"

    def __init__(
        self, chip: chips.Chip, numerics: Target | None, topology: Topology | None
    ) -> None:
        self.platform = numerics.platform if numerics else "tpu"
        self.device = SimDevice(chip)
        self.topology = topology
        self.memory = HbmAccount(
            capacity_bytes=chip.hbm_usable_bytes,
            chip=chip.name,
            enforce=False,
            on_storage=self._made,
        )
        self._observer: Callable[[Launch], None] | None = None
        self.on_read: Callable[[AbstractArray], np.ndarray[Any, Any]] = _refuse_read
        self._numerics = numerics
        self.is_abstract = numerics is None

    def _made(self, holder: object, size_bytes: int) -> None:
        if self.device.hbm.enforce:  # else no error will want to know of it
            context.storage(holder, size_bytes)

    def info(self) -> DeviceInfo:
        chip = self.device.chip
        return DeviceInfo(
            name=f"TPU {chip.name} (simulated)",
            memory_bytes=chip.hbm_usable_bytes,
            cores=chip.cores_per_device,
            topology=format_shape(self.topology.shape) if self.topology else "",
            simulated=True,
        )

    def places(self) -> list[Place]:
        if self.topology is None:
            return []
        found = [(n, self.topology.coords(n)) for n in self.topology.rank_order]
        return [
            Place(
                id=number,
                coords=(at.x, at.y, at.z),
                core_on_chip=at.core,
                slice_index=at.slice,
                process_index=rank,
                device_kind=_KINDS.get(self.device.chip.name, ""),
            )
            for rank, (number, at) in enumerate(found)
        ]

    @property
    def statistics(self) -> MemoryUse:
        return self.device.arrays

    @property
    def observer(self) -> Callable[[Launch], None] | None:
        """Is told of each launch; while there is one, memory beyond the chip's is no error, and it
        may answer reads of abstract arrays by `on_read`.
        """
        return self._observer

    @observer.setter
    def observer(self, observer: Callable[[Launch], None] | None) -> None:
        self._observer = observer
        self.device.hbm.enforce = observer is None
        if observer is None:
            self.on_read = _refuse_read

    def reserve(self, holder: Any, size_bytes: int) -> None:
        self.device.arrays.reserve(holder, size_bytes)

    def put(self, value: np.ndarray[Any, Any], spec: Spec | None = ()) -> DeviceArray:
        del spec  # one device
        self.device.arrays.require(value.nbytes)
        if self._numerics:
            made = self._numerics.put(value)
        else:
            made = AbstractArray(value.shape, value.dtype, value)
        self.device.arrays.add(made, value.nbytes)
        return made

    def get(self, array: DeviceArray) -> np.ndarray[Any, Any]:
        self.device.synchronize()
        if self._numerics:
            return self._numerics.get(array)
        return self.on_read(array) if array.value is None else array.value

    def compile(
        self,
        module: Any,
        outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        ranks: Sequence[int] = (),
    ) -> Executable:
        graph = stablehlo.read(module)
        if self._numerics is None:
            bytecode.keep(graph, module)
            return self._executable(graph, _abstract(outputs))
        compiled = self._numerics.compile(module, outputs, ranks)
        text = io.BytesIO()
        module.operation.write_bytecode(text)
        return self._executable(graph, compiled.run, lambda: _joined(text.getvalue(), compiled))

    def identity(self) -> tuple[tuple[str, str], ...] | None:
        numerics = self._numerics.identity() if self._numerics else None
        return None if numerics is None else (("target", self.name), *numerics)

    def load(self, serialized: bytes, ranks: Sequence[int] = ()) -> Executable:
        assert self._numerics is not None, "abstract executables are not kept"
        length, _, rest = serialized.partition(b"\n")
        text, code = rest[: int(length)], rest[int(length) :]
        return self._executable(stablehlo.read(text), self._numerics.load(code, ranks).run)

    def _executable(
        self,
        graph: Graph,
        compute: Callable[[Sequence[DeviceArray]], list[DeviceArray]],
        serialize: Callable[[], bytes | None] = lambda: None,
    ) -> Executable:
        reuse, device = _reuse(graph), self.device
        sizes = [graph.type_of(v).size_bytes for v in graph.outputs]
        reused_bytes = sum(sizes[output] for output, _ in reuse)
        donated = [n for n, value in enumerate(graph.inputs) if value in graph.donated]

        def run(arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
            device.admit(graph, reused_bytes)
            results = compute(arrays)
            for number in donated:
                device.arrays.drop(arrays[number])
            for result, size_bytes in zip(results, sizes, strict=True):
                device.arrays.add(result, size_bytes)
            device.launch_program(graph)
            if self._observer is not None:
                self._observer(Launch(graph=graph, inputs=arrays, outputs=results, reuse=reuse))
            return results

        return Executable(run=run, module="", nbytes=0, serialize=serialize)

    def wait(self, arrays: Sequence[DeviceArray]) -> None:
        self.device.synchronize()
        if self._numerics:
            self._numerics.wait(arrays)

    def clock_s(self) -> float:
        return self.device.elapsed_s

    def recorded(self, ops: int) -> None:
        self.device.record(ops)


def create(option: str, settings: Settings) -> Target:
    """Make a simulated device of `CHIP` or `CHIP:TOPOLOGY` ("v6e:4x4"; default v6e, one chip).

    TargetError lists the chips, or says which topologies the chip has.
    """
    if settings.mesh:
        raise TargetError(
            "[spmd] target sim simulates one device and cannot partition programs; use target cpu "
            "for their numerics, or torchtpu.aot_compile(mesh=...) for what a TPU makes of them"
        )
    name, _, wanted = option.partition(":")
    try:
        chip = chips.load(name or DEFAULT_CHIP).require_complete()
        topology = topologies.load(chip, wanted) if wanted else None
    except (chips.UnknownChip, chips.IncompleteChip, topologies.TopologyError) as error:
        raise TargetError(f"[TORCHTPU_TARGET=sim:{option}] {error}") from error
    if not settings.numerics:
        return SimTarget(chip, None, topology)
    from torchtpu.targets import cpu

    return SimTarget(chip, cpu.create("", settings), topology)


def _joined(text: bytes, compiled: Executable) -> bytes | None:
    code = compiled.serialize()
    return None if code is None else b"%d\n%b%b" % (len(text), text, code)


def _abstract(
    outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
) -> Callable[[Sequence[DeviceArray]], list[DeviceArray]]:
    def compute(_arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        return [AbstractArray(shape, dtype) for shape, dtype in outputs]

    return compute


def _refuse_read(array: AbstractArray) -> np.ndarray[Any, Any]:
    line = context.user_line()
    raise TargetError(
        f"[sim] a tensor of shape {array.shape} and dtype {array.dtype} is read on the host"
        f"{f' at {line}' if line else ''}, but abstract buffers have no values "
        "(TORCHTPU_SIM_NUMERICS=0); unset TORCHTPU_SIM_NUMERICS for real numerics, or do not read"
    )


def _reuse(graph: Graph) -> tuple[tuple[int, int], ...]:
    """Pair each donated input with the first free output of its type."""
    taken: dict[int, int] = {}
    for position, value in enumerate(graph.inputs):
        if value in graph.donated:
            wanted = graph.type_of(value)
            free = (
                i
                for i, o in enumerate(graph.outputs)
                if i not in taken and graph.type_of(o) == wanted
            )
            output = next(free, None)
            if output is not None:
                taken[output] = position
    return tuple(taken.items())
