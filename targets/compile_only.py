"""The TPU compiler on a machine without a TPU: libtpu's client that compiles and runs nothing.

`python -m torchtpu.targets.compile_only TOPOLOGY MESH MODULE [EXECUTABLE]` compiles a file of
StableHLO for a mesh ("1" or "2,2") and prints the report as JSON: the compiler may end its process.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchtpu.private import jax as private
from torchtpu.targets import child, tpu_rules
from torchtpu.targets.base import CompileReport, TargetError
from torchtpu.targets.tpu_compiler import library as libtpu

# libtpu would ask a metadata server what machine this is, and lock itself to one process.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# Both cores of a chip as one device, as JAX drives it on a TPU; libtpu does so by itself for v5p.
_CONFIGURATION = {"v4": {"chip_config_name": "megacore"}}
_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|ragged-all-to-all"
_COLLECTIVE = re.compile(rf"^ *(?:ROOT )?%?[\w.-]+ = .*? ({_KINDS})(?:-start)?\(", re.MULTILINE)


class TpuCompiler:
    """libtpu's compiler for a topology, such as "v5e:2x2", or "2 x v6e:16x16" for two slices.

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
        from jax.experimental import topologies

        slices, _, name = topology.rpartition(" x ")
        options = _host_bounds(name) | ({"num_slices": int(slices)} if slices else {})
        options |= _CONFIGURATION.get(name.partition(":")[0], {})
        try:
            found = topologies.get_topology_desc(name, "tpu", **options)
        except Exception as error:
            raise TargetError(
                f"[tpu compiler] {library} knows no topology {topology!r}: {error}"
            ) from error
        self.topology = topology
        self._devices: Sequence[Any] = found.devices

    def compile(self, module: Any, mesh: Sequence[int] = (1,)) -> CompileReport:
        """Compile a StableHLO module lowered for platform tpu; XLA's error where it is refused.

        mesh: the sizes of the axes that it is partitioned on.
        """
        return self.executable(module, mesh)[1]

    def executable(self, module: Any, mesh: Sequence[int] = (1,)) -> tuple[bytes, CompileReport]:
        """Compile as `compile` does; return the executable too, as libtpu writes it."""
        made, report, _ = self._compiled(module, mesh)
        return made.serialize(), report

    def optimized(self, module: Any, replicas: int = 1) -> tuple[str, CompileReport]:
        """Compile what each of 1 or all devices runs; return the optimized HLO's text too.

        Collectives name devices by their place in order of libtpu's numbers.
        """
        if replicas not in (1, len(self._devices)):
            raise TargetError(
                f"[tpu compiler] {replicas} replicas, expected 1 or the {len(self._devices)} "
                f"devices of topology {self.topology!r}"
            )
        devices = sorted(self._devices, key=lambda d: d.id)[:replicas]
        _, report, text = self._compiled_on(module, devices, private.replica_options(devices))
        return text, report

    def _compiled(self, module: Any, mesh: Sequence[int]) -> tuple[Any, CompileReport, str]:
        devices = self._placed(mesh)
        return self._compiled_on(module, devices, private.compile_options(devices))

    def _compiled_on(
        self, module: Any, devices: Sequence[Any], options: Any
    ) -> tuple[Any, CompileReport, str]:
        tpu_rules.check(module)
        start = time.perf_counter()
        client: Any = devices[0].client
        made = client.compile(module, private.device_list(devices), options)
        seconds = time.perf_counter() - start
        memory, cost = made.get_compiled_memory_stats(), made.cost_analysis() or {}
        text = "".join(m.to_string() for m in made.hlo_modules())
        report = CompileReport(
            topology=self.topology,
            devices=len(devices),
            seconds=seconds,
            argument_bytes=memory.argument_size_in_bytes,
            output_bytes=memory.output_size_in_bytes,
            alias_bytes=memory.alias_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            code_bytes=memory.generated_code_size_in_bytes,
            flops=cost.get("flops", 0.0),
            bytes_accessed=cost.get("bytes accessed", 0.0),
            collectives=dict(Counter(_COLLECTIVE.findall(text))),
        )
        return made, report, text

    def _placed(self, mesh: Sequence[int]) -> list[Any]:
        """The devices of a mesh: its neighbours are those of the torus where that can be."""
        count = math.prod(mesh)
        if count == 1:
            return [self._devices[0]]
        if count != len(self._devices):
            raise TargetError(
                f"[tpu compiler] a mesh of {'x'.join(map(str, mesh))} has {count} devices, "
                f"expected 1 or the {len(self._devices)} of topology {self.topology!r}"
            )
        from jax.experimental import mesh_utils

        return list(mesh_utils.create_device_mesh(tuple(mesh), devices=self._devices).flat)


def _host_bounds(topology: str) -> dict[str, Any]:
    """libtpu takes hosts to have 2x2 chips, also where there is only one."""
    sizes = [int(n) for n in re.findall(r"\d+", topology.partition(":")[2])]
    if not sizes or math.prod(sizes) >= 4:
        return {}
    return {"chips_per_host_bounds": (*sizes, 1, 1)[:3]}


def compile_apart(
    module: Path, topology: str, mesh: Sequence[int], executable: Path | None, limit_s: float
) -> CompileReport:
    """Compile a file of StableHLO in a process of its own; TargetError says why there is nothing.

    executable: a file for what libtpu makes of it.
    """
    where = [str(executable)] if executable else []
    sizes = ",".join(map(str, mesh))
    answer = child.ask(__name__, topology, sizes, str(module), *where, limit_s=limit_s)
    if answer.failure:
        raise TargetError(f"[tpu compiler] {topology}: {answer.failure}")
    return CompileReport(**answer.value)


def main(topology: str, mesh: str, module: str, executable: str = "") -> None:
    """Compile a file and print the report."""
    try:
        made, report = TpuCompiler(topology).executable(
            private.parse_module(Path(module).read_bytes()), [int(n) for n in mesh.split(",")]
        )
    except Exception as error:
        sys.exit(child.first_line(error))
    if executable:
        Path(executable).write_bytes(made)
    sys.stdout.write(json.dumps(asdict(report)) + "\n")


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    main(*sys.argv[1:])
