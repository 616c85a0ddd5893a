"""The interface of a target: a device that stores arrays, compiles StableHLO and runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtpu.sim.memory import HbmAccount, MemoryUse
from torchtpu.targets.meshes import Axes, DeviceMesh, Spec
from torchtpu.targets.placement import Place
from torchtpu.targets.world import World

DeviceArray = Any  # the target's own handle of an array in device memory
Run = Callable[[Sequence[DeviceArray]], list[DeviceArray]]


class TargetError(RuntimeError):
    """A target cannot be used; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the user may ask of any target; each heeds what concerns it."""

    numerics: bool = True  # False: abstract buffers without values
    imitate_tpu_matmul: bool = False  # where values come from a CPU: float32 as on a TPU
    start_timeout_s: float = 120.0  # for a library that loads, or waits for other hosts
    world: World | None = None  # the processes that this one is one of
    mesh: Axes = ()  # of the devices of this process; none: it has one device


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """What a target's device is: the chip and its memory in bytes (0 where there is no bound)."""

    name: str
    memory_bytes: int
    cores: int
    topology: str = ""  # of the slice that it is one of ("4x4"); empty for a single chip
    simulated: bool = False  # its clock and memory are a model's


@dataclass(frozen=True, kw_only=True)
class Executable:
    """A compiled program: `run(inputs) -> outputs` and the output types in order."""

    run: Run
    module: str  # the name that stands in reports
    nbytes: int  # size of the generated code, 0 where unknown
    serialize: Callable[[], bytes | None] = lambda: None  # for Target.load; None: it cannot be kept


@dataclass(frozen=True, kw_only=True)
class CompileReport:
    """What a TPU compiler says of a program: seconds it took, bytes of memory, and its own costs.

    All but seconds are of one device: argument, output, alias (outputs in the memory of arguments),
    temporary and code are bytes of HBM; flops and bytes_accessed are of one run; collectives are
    counts by kind ("all-reduce").
    """

    topology: str
    devices: int
    seconds: float
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    code_bytes: int
    flops: float
    bytes_accessed: float
    collectives: dict[str, int]

    @property
    def peak_bytes(self) -> int:
        """HBM of one device that a run needs."""
        own = self.output_bytes - self.alias_bytes
        return self.argument_bytes + own + self.temporary_bytes + self.code_bytes


class Target(ABC):
    """At most ten methods; everything above this line is the same for every target."""

    name: str  # as in TORCHTPU_TARGET
    platform: str  # what JAX calls the platform that lowerings are specialised for
    memory: HbmAccount  # what live storages take of the device's memory
    is_abstract = False  # True: arrays have no values
    mesh: DeviceMesh | None = None  # that programs are partitioned over; None: one device

    @property
    def statistics(self) -> MemoryUse:
        """What memory statistics are read from: the account of storages, or the device's own."""
        return self.memory

    @abstractmethod
    def info(self) -> DeviceInfo:
        """Describe the device of this process."""

    @abstractmethod
    def put(self, value: np.ndarray[Any, Any], spec: Spec | None = ()) -> DeviceArray:
        """Copy a host array to the device; the host's may be changed as soon as this returns.

        spec: how it lies on a mesh; None: as nothing that anybody wrote.
        """

    @abstractmethod
    def get(self, array: DeviceArray) -> np.ndarray[Any, Any]:
        """Wait for an array and return it on the host (possibly read-only)."""

    @abstractmethod
    def compile(
        self,
        module: Any,
        outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        ranks: Sequence[int] = (),
    ) -> Executable:
        """Compile an MLIR module in StableHLO whose results have the given shapes and dtypes.

        ranks: the processes of the world that run a replica each, this one among them, in the
        order of their numbers inside the program. All of them have to launch it.
        """

    def identity(self) -> tuple[tuple[str, str], ...] | None:
        """Name all that decides, beside a module, what `compile` makes: device, compiler, options.

        An executable may be loaded where all of this is the same. None: it is never kept.
        """
        return None

    def load(self, _serialized: bytes, _ranks: Sequence[int] = ()) -> Executable:
        """Return an executable made of what the `serialize` of another process's one returned."""
        raise TargetError(f"[{self.name}] loads no executables")

    @abstractmethod
    def wait(self, arrays: Sequence[DeviceArray]) -> None:
        """Block until these arrays are computed; raises what their programs raised."""

    def clock_s(self) -> float | None:
        """Return the device's own time in seconds where it has one (it is simulated), else None."""
        return None

    def places(self) -> list[Place]:
        """Return where the device of each rank of the world is; none where they have no places."""
        return []

    def reserve(self, _holder: Any, _size_bytes: int) -> None:
        """A storage asks for memory that nothing is written to yet: its `array` is None.

        Raises where a device that enforces its capacity has too little.
        """
        return

    def abort(self) -> None:
        """Make programs fail that wait for other processes, where that can be done."""
        return

    def recorded(self, _ops: int) -> None:
        """The host has recorded so many ops for the program that it launches next."""
        return
