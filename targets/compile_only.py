"""The TPU compiler on a machine without a TPU: libtpu's client that compiles and runs nothing."""

from __future__ import annotations

import importlib.util
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtpu.targets.base import TargetError

# libtpu would ask a metadata server what machine this is, and lock itself to one process.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the compiler says of a program: seconds it took, bytes of memory, and its own costs.

    argument, output, temporary and code are bytes of HBM; flops and bytes_accessed are of one run.
    """

    seconds: float
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    code_bytes: int
    flops: float
    bytes_accessed: float


class TpuCompiler:
    """libtpu's compiler for one device of a topology, such as "v5e:2x2" or "v6e:2x2".

    JAX itself must not start a TPU here: JAX_PLATFORMS=cpu says so, before jax is used.
    """

    def __init__(self, topology: str) -> None:
        library = libtpu()
        if not library:
            raise TargetError(
                "[tpu compiler] no libtpu: pip install 'torchtpu[tpu]', or set TPU_LIBRARY_PATH"
            )
        for name, value in {**_ENVIRONMENT, "TPU_LIBRARY_PATH": library}.items():
            os.environ.setdefault(name, value)
        from jax._src import compiler
        from jax._src.lib import xla_client  # type: ignore[attr-defined]  # a re-export
        from jax.experimental import topologies

        try:
            device: Any = topologies.get_topology_desc(topology, "tpu").devices[0]
        except Exception as error:
            raise TargetError(
                f"[tpu compiler] {library} knows no topology {topology!r}: {error}"
            ) from error
        self.topology = topology
        self._client: Any = device.client
        self._devices = xla_client.DeviceList((device,))
        self._options = compiler.get_compile_options(num_replicas=1, num_partitions=1)

    def compile(self, module: Any) -> Report:
        """Compile a StableHLO module lowered for platform tpu; XLA's error where it is refused."""
        start = time.perf_counter()
        made = self._client.compile(module, self._devices, self._options)
        seconds = time.perf_counter() - start
        memory, cost = made.get_compiled_memory_stats(), made.cost_analysis() or {}
        return Report(
            seconds=seconds,
            argument_bytes=memory.argument_size_in_bytes,
            output_bytes=memory.output_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            code_bytes=memory.generated_code_size_in_bytes,
            flops=cost.get("flops", 0.0),
            bytes_accessed=cost.get("bytes accessed", 0.0),
        )


def libtpu() -> str:
    """Return libtpu's path, from TPU_LIBRARY_PATH or the installed package; "" for none."""
    package = importlib.util.find_spec("libtpu")
    inside = Path(package.origin).with_name("libtpu.so") if package and package.origin else ""
    return os.environ.get("TPU_LIBRARY_PATH") or str(inside)
