"""A target over any PJRT client: what cpu and tpu share, all but finding the client."""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import ml_dtypes
import numpy as np

from torchtpu.private import jax as private
from torchtpu.sim.memory import HbmAccount, MemoryUse
from torchtpu.sim.residents import Residents
from torchtpu.targets import placement
from torchtpu.targets.base import DeviceArray, DeviceInfo, Executable, Target, TargetError
from torchtpu.targets.meshes import Axes, DeviceMesh, Spec

AHEAD = 256  # launches that the host may be ahead of the device
_STRIDE = 32
# XLA's CPU client lets a thread wait from 32 launches on, of which it has one per device: those in
# a collective would then wait for others that get no thread, and end the process.
MESH_AHEAD = 16
_MESH_STRIDE = 4
_UNLIMITED_BYTES = 1 << 62
_HOST_CALLS = ("python_cpu_callback", "python_callback")  # hold addresses of this process


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


class PjrtTarget(Target):
    """Runs on the first local device of a PJRT client."""

    def __init__(
        self,
        client: Any,
        name: str,
        platform: str,
        libraries: Mapping[str, Callable[[], None]] | None = None,
        axes: Axes = (),
    ) -> None:
        """Take a client; `libraries` are started before an executable that calls one is loaded.

        libraries: by a text that stands in the names of all their functions. axes: of a mesh of
        the client's first devices; none: its first device alone. TargetError where it has fewer.
        """
        import jax

        arrays = private.arrays()
        self.name = name
        self.platform = platform
        self._client = client
        self._launched = count(1).__next__
        self._marks: deque[Any] = deque()  # tokens of every `_stride`-th launch
        self._libraries = libraries or {}
        self._device = client.local_devices()[0]
        self._world = sorted(client.devices(), key=lambda d: d.process_index)
        self._devices = [self._device]
        self._sharding = arrays.SingleDeviceSharding(self._device)
        self._ahead, self._stride = AHEAD, _STRIDE
        if axes:
            self._ahead, self._stride = MESH_AHEAD, _MESH_STRIDE
            self._devices = _first(client, name, axes)
            self.mesh = DeviceMesh(self._devices, axes)
            self._sharding = self.mesh.sharding(())
        self._shaped_array = arrays.ShapedArray
        self._arrays = arrays
        self._enable_x64 = jax.enable_x64
        self._handler = arrays.result_handler
        stats = self._device.memory_stats() or {}
        limit = int(stats.get("bytes_limit", _UNLIMITED_BYTES))
        self.memory = HbmAccount(capacity_bytes=limit, chip=self._device.device_kind, enforce=False)
        own = HbmAccount(capacity_bytes=limit, chip=self._device.device_kind, enforce=False)
        self._arrays_of_a_device = Residents(own)  # of a mesh

    @property
    def statistics(self) -> MemoryUse:
        return self.memory if self.mesh is None else self._arrays_of_a_device

    def reserve(self, holder: Any, size_bytes: int) -> None:
        if self.mesh is not None:
            self._arrays_of_a_device.reserve(holder, size_bytes)

    def info(self) -> DeviceInfo:
        limit = self.memory.capacity_bytes
        return DeviceInfo(
            name=self._device.device_kind,
            memory_bytes=0 if limit == _UNLIMITED_BYTES else limit,
            cores=int(getattr(self._device, "num_cores", 1)),
        )

    def places(self) -> list[placement.Place]:
        return placement.places(self._world)

    def put(self, value: np.ndarray[Any, Any], spec: Spec | None = ()) -> DeviceArray:
        # XLA may alias host memory for as long as the array lives, so it gets a copy of its own.
        own = np.array(value, order="C", copy=True)
        aval = self._shaped_array(own.shape, own.dtype)
        with self._enable_x64(True):  # else 64-bit values lose their upper half on the way
            if self.mesh is None:
                return self._arrays.put(aval, self._sharding, [own], [self._device])
            sharding, shards = self.mesh.sharding(spec), self.mesh.shards(own, spec)
            return self._counted(self._arrays.put(aval, sharding, shards, self._devices))

    def _counted(self, array: DeviceArray) -> DeviceArray:
        assert self.mesh is not None
        self._arrays_of_a_device.add(array, self.mesh.bytes_of_a_device(array))
        return array

    def get(self, array: DeviceArray) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def compile(
        self,
        module: Any,
        outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        ranks: Sequence[int] = (),
    ) -> Executable:
        devices, options = self._placed(ranks)
        loaded = self._client.compile_and_load(module, private.device_list(devices), options)
        specs = self.mesh.outputs(loaded, len(outputs)) if self.mesh is not None else []
        return self._executable(loaded, outputs, devices, specs)

    def identity(self) -> tuple[tuple[str, str], ...] | None:
        return (
            ("platform", self.platform),
            ("platform version", self._client.platform_version),
            ("device", self._device.device_kind),
            (
                "compile options",
                hashlib.sha256(self._placed(())[1].SerializeAsString()).hexdigest(),
            ),
            *((("mesh", str(self.mesh)),) if self.mesh is not None else ()),
        )

    def load(self, serialized: bytes, ranks: Sequence[int] = ()) -> Executable:
        head, _, code = serialized.partition(b"\n")
        about = json.loads(head)
        outputs = [(tuple(shape), _dtype(name)) for shape, name in about["outputs"]]
        for library in about["libraries"]:
            self._libraries[library]()
        devices, options = self._placed(ranks)
        if about["replicas"] != len(devices):  # nobody has said yet which ranks run it
            raise TargetError(
                f"[{self.name}] expected the ranks of {about['replicas']} replicas, got {ranks}"
            )
        listed = private.device_list(devices)
        loaded = self._client.deserialize_executable(code, listed, options)
        specs = [tuple(map(tuple, spec)) for spec in about.get("specs", ())]
        return self._executable(loaded, outputs, devices, specs)

    def _placed(self, ranks: Sequence[int]) -> tuple[list[Any], Any]:
        """Return the devices of a program and its options: this device alone, or some ranks'."""
        if self.mesh is not None:
            return self._devices, private.compile_options(self._devices)
        if not ranks:
            return [self._device], private.compile_options()
        devices = [self._world[rank] for rank in ranks]
        return devices, private.replica_options(devices)

    def launch_together(self, launch: Callable[[], tuple[Any, Any]], _ranks: Sequence[int]) -> Any:
        """Launch a program of these processes' devices; the others launch it in the same order.

        launch: returns results, which are returned, and a token of the program's end.
        """
        return launch()[0]

    def _executable(
        self,
        loaded: Any,
        outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        devices: Sequence[Any],
        specs: Sequence[Spec],
    ) -> Executable:
        mesh = self.mesh
        lie = [mesh.sharding(s) for s in specs] if mesh else [self._sharding] * len(outputs)
        handlers = [
            self._handler(self._shaped_array(shape, dtype), sharding)
            for (shape, dtype), sharding in zip(outputs, lie, strict=True)
        ]
        execute, launched, stride = loaded.execute_sharded, self._launched, self._stride

        def run(arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
            if not launched() % stride:
                results, token = run_marked(arrays)
                self._keep_up(token)
                return results
            unmarked: list[DeviceArray] = execute(arrays).consume_with_handlers(handlers)
            return unmarked

        def run_marked(arrays: Sequence[DeviceArray]) -> tuple[list[DeviceArray], Any]:
            launch = execute(arrays, with_tokens=True)
            token = launch.consume_token()
            return launch.consume_with_handlers(handlers), token

        def run_on_mesh(arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
            results = run(arrays)
            for array in arrays:
                if array.is_deleted():
                    self._arrays_of_a_device.drop(array)
            return [self._counted(result) for result in results]

        def serialize() -> bytes | None:
            text = b"".join(m.as_serialized_hlo_module_proto() for m in loaded.hlo_modules())
            if any(name.encode() in text for name in _HOST_CALLS):
                return None
            about = {
                "outputs": [(shape, dtype.name) for shape, dtype in outputs],
                "replicas": len(devices),
                "specs": specs,
                "libraries": [name for name in self._libraries if name.encode() in text],
            }
            code: bytes = loaded.serialize()
            return json.dumps(about).encode() + b"\n" + code

        ranks = [d.process_index for d in devices]

        def run_together(arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
            launched: list[DeviceArray] = self.launch_together(partial(run_marked, arrays), ranks)
            return launched

        module = str(loaded.fingerprint or "")
        return Executable(
            run=run_on_mesh if mesh else run if len(devices) == 1 else run_together,
            module=module,
            nbytes=0,
            serialize=serialize,
        )

    def _keep_up(self, token: Any) -> None:
        """Wait for the launch `_ahead` launches ago: what waits holds its inputs' memory."""
        self._marks.append(token)
        if len(self._marks) * self._stride > self._ahead:
            self._marks.popleft().block_until_ready()

    def wait(self, arrays: Sequence[DeviceArray]) -> None:
        self._arrays.wait(list(arrays) or self._client.live_arrays())


def _first(client: Any, name: str, axes: Axes) -> list[Any]:
    """Return the devices of a mesh."""
    wanted, found = math.prod(size for _, size in axes), client.local_devices()
    if len(found) < wanted:
        raise TargetError(
            f"[spmd] expected {wanted} devices of target {name} in this process, got {len(found)}"
        )
    return list(found[:wanted])
