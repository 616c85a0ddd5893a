"""Target sim: a chip's clock and HBM account, over cpu numerics or abstract arrays."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model import stablehlo
from torchtpu.perf_model.program import Graph
from torchtpu.sim.device import SimDevice
from torchtpu.sim.observed import AbstractArray, Launch
from torchtpu.targets.base import (
    DeviceArray,
    DeviceInfo,
    Executable,
    Settings,
    Target,
    TargetError,
)

DEFAULT_CHIP = "v6e"


class SimTarget(Target):
    """Simulated time and memory of one chip; values come from `numerics`, or do not exist."""

    name = "sim"

    def __init__(self, chip: chips.Chip, numerics: Target | None) -> None:
        self.platform = numerics.platform if numerics else "tpu"
        self.device = SimDevice(chip, enforce_capacity=numerics is not None)
        self.memory = self.device.hbm
        self.observer: Callable[[Launch], None] | None = None
        self.on_read: Callable[[AbstractArray], np.ndarray[Any, Any]] = _refuse_read
        self._numerics = numerics

    def info(self) -> DeviceInfo:
        chip = self.device.chip
        return DeviceInfo(
            name=f"TPU {chip.name} (simulated)", memory_bytes=chip.hbm_usable_bytes, cores=1
        )

    def put(self, value: np.ndarray[Any, Any]) -> DeviceArray:
        if self._numerics:
            return self._numerics.put(value)
        return AbstractArray(value.shape, value.dtype)

    def get(self, array: DeviceArray) -> np.ndarray[Any, Any]:
        self.device.synchronize()
        return self._numerics.get(array) if self._numerics else self.on_read(array)

    def compile(
        self, module: Any, outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]
    ) -> Executable:
        graph = stablehlo.read(module)
        if self._numerics is None:
            return self._executable(graph, _abstract(outputs))
        compiled = self._numerics.compile(module, outputs)
        text = io.BytesIO()
        module.operation.write_bytecode(text)
        return self._executable(graph, compiled.run, lambda: _joined(text.getvalue(), compiled))

    def identity(self) -> tuple[tuple[str, str], ...] | None:
        numerics = self._numerics.identity() if self._numerics else None
        return None if numerics is None else (("target", self.name), *numerics)

    def load(self, serialized: bytes) -> Executable:
        assert self._numerics is not None, "abstract executables are not kept"
        length, _, rest = serialized.partition(b"\n")
        text, code = rest[: int(length)], rest[int(length) :]
        return self._executable(stablehlo.read(text), self._numerics.load(code).run)

    def _executable(
        self,
        graph: Graph,
        compute: Callable[[Sequence[DeviceArray]], list[DeviceArray]],
        serialize: Callable[[], bytes | None] = lambda: None,
    ) -> Executable:
        reuse = _reuse(graph)

        def run(arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
            results = compute(arrays)
            self.device.launch_program(graph)
            if self.observer is not None:
                self.observer(Launch(graph=graph, inputs=arrays, outputs=results, reuse=reuse))
            return results

        return Executable(run=run, module="", nbytes=0, serialize=serialize)

    def wait(self, arrays: Sequence[DeviceArray]) -> None:
        self.device.synchronize()
        if self._numerics:
            self._numerics.wait(arrays)

    def clock_s(self) -> float:
        return self.device.elapsed_s


def create(option: str, settings: Settings) -> Target:
    """Make a simulated device of the chip in `option` (default v6e); an error lists the chips."""
    try:
        chip = chips.load(option or DEFAULT_CHIP)
    except chips.UnknownChip as error:
        raise TargetError(f"[TORCHTPU_TARGET=sim:{option}] {error}") from error
    if not settings.numerics:
        return SimTarget(chip, None)
    from torchtpu.targets import cpu

    return SimTarget(chip, cpu.create("", settings))


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
    raise TargetError(
        f"[sim] a tensor of shape {array.shape} was read on the host, but abstract buffers have no "
        "values; leave TORCHTPU_SIM_NUMERICS unset for real numerics"
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
