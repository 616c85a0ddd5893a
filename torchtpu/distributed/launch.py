"""The environment of a launch on TPUs: `torch.tpu.distributed.environment`.

`eval "$(python -m torch.tpu.distributed --nproc-per-node 4)"` before torchrun.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Mapping

from torchtpu import targets
from torchtpu.errors import TpuError

ADDRESSES, TOPOLOGY = targets.LAUNCH_VARIABLES
PER_HOST, BASE_PORT, HOSTS = (
    "TORCH_TPU_DEVICES_PER_HOST",
    "TORCH_TPU_BASE_PORT",
    ("TPU_WORKER_HOSTNAMES"),
)
_PORT = 8070


def set_tpu_launch_env(nnodes: int = 1, nproc_per_node: int | None = None) -> None:
    """Set what the processes of a launch on TPUs find each other by, before they are started.

    nnodes: hosts, named by TPU_WORKER_HOSTNAMES (commas) where there are several. nproc_per_node:
    processes on each, one per TPU device; by default TORCH_TPU_DEVICES_PER_HOST, else the chips
    of this host. Sets TORCH_TPU_SLICEBUILDER_ADDRESSES (host:port of every process, ports from
    TORCH_TPU_BASE_PORT, 8070, on) and, where it is not set, TORCH_TPU_TOPOLOGY (chips along x, y
    and z; the squarest plane by default: set it yourself on a slice of three dimensions).
    TpuError for counts that do not fit these variables.
    """
    os.environ.update(launch_env(nnodes, nproc_per_node, os.environ))


def launch_env(
    nnodes: int, nproc_per_node: int | None, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return what `set_tpu_launch_env` sets in an environment."""
    count = _per_host(environment) if nproc_per_node is None else nproc_per_node
    if nnodes < 1 or count < 1:
        raise TpuError(
            f"[set_tpu_launch_env] expected 1 or more nodes and processes, got {nnodes} and {count}"
        )
    first = _integer(environment, BASE_PORT, _PORT)
    if not 0 < first <= 65536 - count:
        raise TpuError(f"[{BASE_PORT}] expected room for {count} ports, got {first}")
    hosts = _hosts(nnodes, environment)
    addresses = [f"{host}:{first + n}" for host in hosts for n in range(count)]
    return {
        ADDRESSES: ",".join(addresses),
        TOPOLOGY: _topology(len(addresses), environment),
        PER_HOST: str(count),
    }


def _per_host(environment: Mapping[str, str]) -> int:
    found = _integer(environment, PER_HOST, targets.local_chips())
    if not found:
        raise TpuError(
            "[set_tpu_launch_env] no TPU chip on this host to start a process for: "
            f"pass nproc_per_node, or set {PER_HOST}"
        )
    return found


def _hosts(nnodes: int, environment: Mapping[str, str]) -> list[str]:
    hosts = [h.strip() for h in environment.get(HOSTS, "").split(",") if h.strip()]
    if nnodes == 1 and len(hosts) != 1:
        return ["localhost"]
    if len(hosts) != nnodes:
        raise TpuError(
            f"[{HOSTS}] expected the names of {nnodes} hosts with commas, got "
            f"{len(hosts)}: {environment.get(HOSTS, '')!r}"
        )
    return hosts


def _topology(devices: int, environment: Mapping[str, str]) -> str:
    said = environment.get(TOPOLOGY, "")
    if not said:
        x = next(n for n in range(math.isqrt(devices), 0, -1) if devices % n == 0)
        return f"{x},{devices // x},1"
    sizes = said.split(",")
    if not all(s.strip().isdecimal() for s in sizes) or math.prod(map(int, sizes)) != devices:
        raise TpuError(
            f"[{TOPOLOGY}] expected sizes with commas whose product is the {devices} processes, "
            f"such as 2,2,1 for 4, got {said!r}; unset it for a default"
        )
    return said


def _integer(environment: Mapping[str, str], variable: str, default: int) -> int:
    text = environment.get(variable, "")
    if text and not text.isdecimal():
        raise TpuError(f"[{variable}] expected a whole number, got {text!r}")
    return int(text) if text else default


def main() -> None:
    """Print the environment as the shell reads it."""
    parser = argparse.ArgumentParser(
        prog="python -m torch.tpu.distributed",
        description='print the environment of a launch: eval "$(...)" before torchrun',
    )
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--nproc-per-node", "--nproc_per_node", type=int, default=None)
    asked = parser.parse_args()
    try:
        found = launch_env(asked.nnodes, asked.nproc_per_node, os.environ)
    except TpuError as error:
        parser.error(str(error))
    for name, value in found.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


if __name__ == "__main__":
    main()
