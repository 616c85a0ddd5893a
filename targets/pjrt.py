"""A target over any PJRT client: what cpu and tpu share, all but finding the client."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import ml_dtypes
import numpy as np

from torchtpu.private import jax as private
from torchtpu.sim.memory import HbmAccount
from torchtpu.targets import placement
from torchtpu.targets.base import DeviceArray, DeviceInfo, Executable, Target, TargetError

AHEAD = 256  # launches that the host may be ahead of the device
_STRIDE = 32
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
    ) -> None:
        """Take a client; `libraries` are started before an executable that calls one is loaded.

        libraries: by a text that stands in the names of all their functions.
        """
        import jax

        arrays = private.arrays()
        self.name = name
        self.platform = platform
        self._client = client
        self._launched = count(1).__next__
        self._marks: deque[Any] = deque()  # tokens of every _STRIDE-th launch
        self._libraries = libraries or {}
        self._device = client.local_devices()[0]
        self._world = sorted(client.devices(), key=lambda d: d.process_index)
        self._sharding = arrays.SingleDeviceSharding(self._device)
        self._shaped_array = arrays.ShapedArray
        self._arrays = arrays
        self._enable_x64 = jax.enable_x64
        self._handler = arrays.result_handler
        stats = self._device.memory_stats() or {}
        limit = int(stats.get("bytes_limit", _UNLIMITED_BYTES))
        self.memory = HbmAccount(capacity_bytes=limit, chip=self._device.device_kind, enforce=False)

    def info(self) -> DeviceInfo:
        limit = self.memory.capacity_bytes
        return DeviceInfo(
            name=self._device.device_kind,
            memory_bytes=0 if limit == _UNLIMITED_BYTES else limit,
            cores=int(getattr(self._device, "num_cores", 1)),
        )

    def places(self) -> list[placement.Place]:
        return placement.places(self._world)

    def put(self, value: np.ndarray[Any, Any]) -> DeviceArray:
        # XLA may alias host memory for as long as the array lives, so it gets a copy of its own.
        own = np.array(value, order="C", copy=True)
        aval = self._shaped_array(own.shape, own.dtype)
        with self._enable_x64(True):  # else 64-bit values lose their upper half on the way
            return self._arrays.put(aval, self._sharding, [own], [self._device])

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
        return self._executable(loaded, outputs, devices)

    def identity(self) -> tuple[tuple[str, str], ...] | None:
        return (
            ("platform", self.platform),
            ("platform version", self._client.platform_version),
            ("device", self._device.device_kind),
            (
                "compile options",
                hashlib.sha256(private.compile_options().SerializeAsString()).hexdigest(),
            ),
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
        return self._executable(loaded, outputs, devices)

    def _placed(self, ranks: Sequence[int]) -> tuple[list[Any], Any]:
        """Return the devices of a program and its options: this device alone, or some ranks'."""
        if not ranks:
            return [self._device], private.compile_options()
        devices = [self._world[rank] for rank in ranks]
        return devices, private.replica_options(devices)

    def introduce(self, _devices: Sequence[int]) -> Callable[[], None]:
        """Let devices find each other, at the first launch of theirs; return what ends that."""
        return lambda: None

    def _executable(
        self,
        loaded: Any,
        outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        devices: Sequence[Any],
    ) -> Executable:
        handlers = [
            self._handler(self._shaped_array(shape, dtype), self._sharding)
            for shape, dtype in outputs
        ]
        execute, launched = loaded.execute_sharded, self._launched

        def run(arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
            if not launched() % _STRIDE:
                launch = execute(arrays, with_tokens=True)
                self._keep_up(launch.consume_token())
            else:
                launch = execute(arrays)
            results: list[DeviceArray] = launch.consume_with_handlers(handlers)
            return results

        def serialize() -> bytes | None:
            text = b"".join(m.as_serialized_hlo_module_proto() for m in loaded.hlo_modules())
            if any(name.encode() in text for name in _HOST_CALLS):
                return None
            about = {
                "outputs": [(shape, dtype.name) for shape, dtype in outputs],
                "replicas": len(devices),
                "libraries": [name for name in self._libraries if name.encode() in text],
            }
            code: bytes = loaded.serialize()
            return json.dumps(about).encode() + b"\n" + code

        def run_together(arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
            introduced = self.introduce([d.id for d in devices])
            try:
                return run(arrays)
            finally:
                introduced()

        module = str(loaded.fingerprint or "")
        return Executable(
            run=run if len(devices) == 1 else run_together,
            module=module,
            nbytes=0,
            serialize=serialize,
        )

    def _keep_up(self, token: Any) -> None:
        """Wait for the launch AHEAD launches ago: what waits holds its inputs' memory."""
        self._marks.append(token)
        if len(self._marks) * _STRIDE > AHEAD:
            self._marks.popleft().block_until_ready()

    def wait(self, arrays: Sequence[DeviceArray]) -> None:
        self._arrays.wait(list(arrays) or self._client.live_arrays())
